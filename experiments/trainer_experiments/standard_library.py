"""Which names each function of Python's standard library uses."""

import ast
import collections
import functools
import itertools
import pathlib
import sysconfig
from collections.abc import Iterator

import numpy as np

from trainer import ArrayExamples
from trainer.plugin_api import Split, configurable

# A name that fewer functions use, or a function that uses fewer, says little.
_FEWEST = 5
_HELD_OUT = 0.2
_SEED = 0
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages"}


@configurable(module="experiments")
def names_in_functions(split: Split) -> ArrayExamples:
    """Pairs of a function and a name, half of which belong together.

    Of the names that a function uses, one in five is for testing. To each pair
    comes one of the same function and a name that it does not use, drawn as
    often as it is used elsewhere: that a name is frequent tells nothing. The
    numbers of functions and names differ between versions of Python.

    Args:
        split: `"train"` or `"eval"`.

    Returns:
        `function` and `name`, int32 `[n]` each; and whether the function uses
        the name, float32 `[n, 1]`.
    """
    pairs, _, names = used_names()
    rng = np.random.default_rng(_SEED)
    held_out = rng.random(len(pairs)) < _HELD_OUT
    # A number for each pair.
    rows = pairs[:, 0].astype(np.int64) * len(names)
    used = rows + pairs[:, 1]
    others = pairs[rng.permutation(len(pairs)), 1]
    # Until none is left that the function uses.
    while (wrong := np.isin(rows + others, used)).any():
        others[wrong] = rng.choice(pairs[:, 1], wrong.sum())
    chosen = held_out if split == "eval" else ~held_out
    both = np.concatenate([pairs[chosen, 1], others[chosen]])
    functions = np.tile(pairs[chosen, 0], 2)
    labels = np.repeat(np.array([1, 0], "float32"), chosen.sum())[:, np.newaxis]
    return ArrayExamples(
        ({"function": functions, "name": both}, labels),
        shuffle=split == "train",
    )


@functools.cache
def used_names() -> tuple[np.ndarray, list[str], list[str]]:
    """Reads the sources.

    Returns:
        Pairs of the number of a function and of a name that it uses, int32
        `[n, 2]`; what the functions are called, and the names.
    """
    found = dict(_functions())
    count = collections.Counter(itertools.chain.from_iterable(found.values()))
    frequent = sorted(name for name in count if count[name] >= _FEWEST)
    number = {name: i for i, name in enumerate(frequent)}
    kept = {
        function: sorted(number[name] for name in names if name in number)
        for function, names in found.items()
    }
    functions = [one for one in kept if len(kept[one]) >= _FEWEST]
    pairs = [(i, name) for i, one in enumerate(functions) for name in kept[one]]
    return np.array(pairs, np.int32), functions, frequent


def _functions() -> Iterator[tuple[str, set[str]]]:
    """Each function, such as `json.decoder:12`, and the names in it."""
    home = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(home.rglob("*.py")):
        place = path.relative_to(home)
        if _SKIPPED.intersection(place.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = {
                    one.id if isinstance(one, ast.Name) else one.attr
                    for one in ast.walk(node)
                    if isinstance(one, ast.Name | ast.Attribute)
                }
                yield f"{place}:{node.lineno}", names
