"""Which names each module of Python's standard library uses."""

import collections
import functools
import itertools
import pathlib
import re
import sysconfig

import numpy as np

from trainer import ArrayExamples
from trainer.plugin_api import Split, configurable

# Text that looks like a name of at least a few letters, also in a comment.
_NAME = re.compile(rb"\b[A-Za-z_]\w{3,}")
# A name that fewer modules use says little.
_FEWEST = 5
_HELD_OUT = 0.2
_SEED = 0
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages"}


@configurable(module="experiments")
def names_in_modules(split: Split) -> ArrayExamples:
    """Pairs of a module and a name, half of which belong together.

    Of the names that a module uses, one in five is for testing. To each pair
    comes one of the same module and a name that it does not use, drawn as often
    as it is used elsewhere, so the frequency of a name reveals nothing. The
    numbers of modules and names differ between versions of Python.

    Args:
        split: `"train"` or `"eval"`.

    Returns:
        `module` and `name`, int32 `[n]` each; and whether the module uses the
        name, float32 `[n, 1]`.
    """
    pairs, _, names = used_names()
    rng = np.random.default_rng(_SEED)
    held_out = rng.random(len(pairs)) < _HELD_OUT
    # A number for each pair.
    rows = pairs[:, 0].astype(np.int64) * len(names)
    used = rows + pairs[:, 1]
    others = pairs[rng.permutation(len(pairs)), 1]
    # Until none is left that the module uses.
    while (wrong := np.isin(rows + others, used)).any():
        others[wrong] = rng.choice(pairs[:, 1], wrong.sum())
    chosen = held_out if split == "eval" else ~held_out
    both = np.concatenate([pairs[chosen, 1], others[chosen]])
    modules = np.tile(pairs[chosen, 0], 2)
    labels = np.repeat(np.array([1, 0], "float32"), chosen.sum())[:, np.newaxis]
    return ArrayExamples(
        ({"module": modules, "name": both}, labels),
        shuffle=split == "train",
    )


@functools.cache
def used_names() -> tuple[np.ndarray, list[str], list[str]]:
    """Reads the sources.

    Returns:
        Pairs of the number of a module and of a name that it uses, int32
        `[n, 2]`; the names of the modules, and those that they use.
    """
    home = pathlib.Path(sysconfig.get_paths()["stdlib"])
    found = {
        str(path.relative_to(home)): set(_NAME.findall(path.read_bytes()))
        for path in sorted(home.rglob("*.py"))
        if _SKIPPED.isdisjoint(path.relative_to(home).parts)
    }
    count = collections.Counter(itertools.chain.from_iterable(found.values()))
    frequent = sorted(name for name in count if count[name] >= _FEWEST)
    number = {name: i for i, name in enumerate(frequent)}
    pairs = [
        (i, number[name])
        for i, names in enumerate(found.values())
        for name in sorted(names & number.keys())
    ]
    names = [name.decode() for name in frequent]
    return np.array(pairs, np.int32), list(found), names
