"""`--init_from`: starts a new run with weights of another run or file.

Variables are matched by path below the model. Only arrays are read: no class
is looked up, and no code in a file is run. A file may declare arrays that are
larger than memory, so an array is read only once it has the shape of a
variable.
"""

import contextlib
import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import h5py
from absl import logging

from trainer.checkpoint import contents, storage
from trainer.errors import UserError, did_you_mean
from trainer.runtime import files
from trainer.step.keras.private import all_layers
from trainer.step.spec import Parts

# What a weights file holds besides the model.
_NOT_MODEL = {"optimizer", "_optimizer", "metrics", "_metrics"}


def initialize_from(
    parts: Parts, path: str, *, only: str | None = None
) -> list[str]:
    """Fills a model with the weights from another run or a file.

    Args:
        parts: of the new run. The averages begin with the weights; the
            optimizers are the caller's to restart.
        path: a run directory, its `checkpoints/`, one checkpoint, or a
            `.keras` or `.weights.h5` file.
        only: a regular expression for the whole path of a variable below the
            model, such as `"encoder/.*"`; others stay new.

    Returns:
        The paths of what was loaded.

    Raises:
        UserError: there is nothing to read, `only` selects nothing, or
            nothing that it selects fits.
    """
    model = parts.model
    variables = list(model.variables)
    names = _below([getattr(v, "path", v.name) for v in variables], model.name)
    selected = _select(names, only)
    kinds = {type(layer).__name__.lower() for layer in all_layers(model)}
    shapes = [tuple(variable.shape) for variable in variables]
    loaded, new = [], []
    # Open until all is filled.
    with contextlib.ExitStack() as stack:
        if path.endswith((".keras", ".h5")):
            stack.enter_context(_sentence(path))
            source, stored = path, _open_file(stack, path)
            found = _match(_numbered(names), shapes, stored, kinds)
        else:
            try:
                source, stored = _open_checkpoint(path)
            except OSError as error:
                what = f"init_from = {path!r} cannot be read"
                raise files.cannot(what, error) from error
            found = _match(names, shapes, stored, kinds)
        for name, shape, variable, there in zip(
            names, shapes, variables, found, strict=True
        ):
            if name not in selected:
                continue
            if there is None:
                new.append(f"{name} {list(shape)}, not there")
            elif tuple(there.shape) != shape:
                new.append(f"{name} {list(shape)}, there {list(there.shape)}")
            else:
                variable.assign(there[()])
                loaded.append(name)
    if not loaded:
        held = (f"{path} {list(one.shape)}" for path, one in stored.items())
        raise UserError(
            f"init_from = {path!r}: no variable there has a path and shape of "
            f"this model. Wanted: {_some(new)}."
            f"{did_you_mean(names[0], stored)} It holds: {_some(held)}."
        )
    if parts.ema is not None:
        parts.ema.restart()
    # What the user did not select is expected to stay new; the rest is not.
    logging.log(
        logging.WARNING if new else logging.INFO,
        "Initialized %d of %d model variables from %s.%s",
        len(loaded),
        len(variables),
        source,
        "".join(f"\n  stays new: {one}" for one in new),
    )
    return loaded


def _below(paths: list[str], model: str) -> list[str]:
    """Paths without the model's name, if all begin with it."""
    if all(path.startswith(f"{model}/") for path in paths):
        return [path.removeprefix(f"{model}/") for path in paths]
    return paths


def _select(names: list[str], only: str | None) -> set[str]:
    if only is None:
        return set(names)
    try:
        pattern = re.compile(only)
    except re.error as error:
        raise UserError(
            f"run.init_only = {only!r} is not a regular expression: {error}."
        ) from None
    selected = set(filter(pattern.fullmatch, names))
    if not selected:
        raise UserError(
            f"run.init_only = {only!r} does not match the whole path of any "
            f"variable of the model. It has: {_some(names)}."
        )
    return selected


def _match(
    names: list[str],
    shapes: list[tuple[int, ...]],
    stored: Mapping[str, Any],
    kinds: set[str],
) -> list[Any]:
    """For each of our variables, the array with its path; `None` for none."""
    # A model may have another name than the one that was saved.
    first = {path.partition("/")[0] for path in stored}
    if len(first) == 1 and not first & {n.partition("/")[0] for n in names}:
        below = _below(list(stored), *first)
        stored = dict(zip(below, stored.values(), strict=True))
    found = [stored.get(name) for name in names]
    if any(one is None for one in found):
        # The same model, whose unnamed layers Keras has counted from another
        # number: Keras names them after their classes.
        mine = sorted((*_uncounted(n, kinds), i) for i, n in enumerate(names))
        theirs = sorted((*_uncounted(path, kinds), path) for path in stored)
        if [(path, shapes[i]) for path, _, i in mine] == [
            (path, tuple(stored[place].shape)) for path, _, place in theirs
        ]:
            for (*_, i), (*_, place) in zip(mine, theirs, strict=True):
                found[i] = stored[place]
    return found


def _uncounted(path: str, kinds: set[str]) -> tuple[str, list[int]]:
    """A path without the numbers that Keras appends, and these."""
    parts, numbers = path.split("/"), []
    for i, part in enumerate(parts):
        name, _, number = part.rpartition("_")
        is_counted = number.isdecimal() and name.replace("_", "") in kinds
        parts[i] = name if is_counted else part
        numbers.append(int(number) if is_counted else 0)
    return "/".join(parts), numbers


def _numbered(paths: list[str]) -> list[str]:
    """`encoder/1` for its second variable, as Keras files count them."""
    seen: Counter[str] = Counter()
    numbered = []
    for path in paths:
        layer = path.rpartition("/")[0]
        numbered.append(f"{layer}/{seen[layer]}".lstrip("/"))
        seen[layer] += 1
    return numbered


def _open_checkpoint(path: str) -> tuple[str, dict[str, Any]]:
    """Returns a checkpoint's name for messages, and its model arrays."""
    if files.exists(f"{path}/manifest.json"):
        snapshot, path = storage.load(path), os.path.dirname(path)
    else:
        for directory in (path, f"{path}/checkpoints"):
            newest = next(storage.newest_first(directory), None)
            if newest is not None:
                snapshot, path = newest, directory
                break
        else:
            raise UserError(
                f"init_from = {path!r} holds no usable checkpoint. Name a run "
                "directory, its checkpoints/, one of those, or a .keras or "
                ".weights.h5 file."
            )
    return f"{path}, step {snapshot.step}", {
        entry["path"]: snapshot.arrays[contents.key_of("model", i)]
        # Only the model's: optimizer and averages are not taken over.
        for i, entry in enumerate(snapshot.host["variables"].get("model", []))
    }


@contextlib.contextmanager
def _sentence(path: str) -> Iterator[None]:
    """Turns a failure to read a Keras file into a clear error message."""
    try:
        yield
    except UserError:
        raise
    # h5py and zipfile raise errors of all kinds for a damaged file.
    except Exception as error:
        why = str(error).strip() or type(error).__name__
        raise UserError(
            f"init_from = {path!r} cannot be read as a Keras file: {why}"
        ) from None


def _open_file(stack: contextlib.ExitStack, path: str) -> dict[str, Any]:
    """The datasets of a Keras file, without those of optimizer and metrics."""
    if not files.exists(path):
        raise UserError(f"init_from = {path!r}: there is no such file.")
    if files.is_local(path) and not os.path.isfile(path):
        raise UserError(f"init_from = {path!r} is not a file.")
    found: dict[str, Any] = {}

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        parts = name.split("/")
        if not isinstance(item, h5py.Dataset) or parts[0] in _NOT_MODEL:
            return
        # Both would read from other files than the one that the user named.
        if item.is_virtual or item.external:
            raise UserError(
                f"init_from = {path!r}: {name} refers to another file."
            )
        if _holds_numbers(item):
            found[_layer_path(weights, parts)] = item

    file = stack.enter_context(_open(path))
    if path.endswith(".keras"):
        archive = stack.enter_context(zipfile.ZipFile(file))
        # Only this entry is read, not the configuration, which names classes.
        entry = archive.getinfo("model.weights.h5")
        # It might inflate to more than the memory.
        if entry.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"init_from = {path!r} is compressed. Save it uncompressed, "
                "as Keras does."
            )
        file = stack.enter_context(archive.open(entry))
    weights = stack.enter_context(h5py.File(file, "r"))
    # visititems does not follow links.
    weights.visititems(visit)
    return found


def _open(path: str) -> IO[bytes]:
    if files.is_local(path):
        return open(path, "rb")
    # At once: h5py and zipfile jump about in a file.
    return io.BytesIO(files.read(path))


def _holds_numbers(item: h5py.Dataset) -> bool:
    try:
        return item.shape is not None and item.dtype.kind in "fiub"
    except TypeError:  # A type that NumPy does not have.
        return False


def _layer_path(weights: h5py.File, parts: list[str]) -> str:
    """`encoder/0` for `layers/dense_1/vars/0`, by the names of layers.

    Keras numbers the keys by class; a layer's name is an attribute.
    """
    names = []
    for end in range(1, len(parts) - 1):
        outer = weights["/".join(parts[:end])]
        # A link may lead to another file.
        if isinstance(outer.get("vars", getlink=True), h5py.HardLink):
            inner = outer["vars"]
            if isinstance(inner, h5py.Group) and "name" in inner.attrs:
                names.append(str(inner.attrs["name"]))
    return "/".join([*names, parts[-1]])


def _some(entries: Iterable[str]) -> str:
    shown = list(entries)
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
