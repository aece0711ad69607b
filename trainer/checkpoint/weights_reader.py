"""Reads a model's weights from a checkpoint or a Keras file.

Only arrays are read: no class is looked up and no code in a file is run. A
file may declare arrays that are larger than memory, so an array is only read
once it is known to have the shape of a variable.
"""

import contextlib
import io
import posixpath
import zipfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import h5py
import ml_dtypes
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.checkpoint import contents, stateful, storage
from trainer.errors import UserError
from trainer.runtime.files import is_file, is_local
from trainer.runtime.schema import Misfit

# What a weights file holds besides the model.
_NOT_MODEL = {"optimizer", "_optimizer", "metrics", "_metrics"}
# An archive that inflates to more than this many times the model, plus some
# bytes, is refused: it may be a zip bomb.
_MOST_TIMES = 8
_SMALL_BYTES = 64 << 20
# Errors that h5py and zipfile raise for a damaged file.
_DAMAGE = (
    ArithmeticError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    OSError,
    tf.errors.OpError,
)


class StoredVariable(NamedTuple):
    """A variable in a file.

    Attributes:
        path: layer names and the variable's name, `"encoder/kernel"`; in a
            Keras file its number in the layer, `"encoder/0"`. The model's
            name may come first.
        shape: of the array.
        read: reads the array; only while the file is open.
    """

    path: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@contextlib.contextmanager
def open_model(
    path: str, *, model_bytes: int = 0
) -> Iterator[tuple[str, list[StoredVariable]]]:
    """Opens the variables of a model, without optimizer and metrics.

    Args:
        path: a run directory, its `checkpoints/`, one checkpoint, or a
            `.keras` or `.weights.h5` file.
        model_bytes: the size of the model that they are for.

    Yields:
        The name of the file or checkpoint, and its variables.

    Raises:
        UserError: there is nothing that can be read.
    """
    if not path.endswith((".keras", ".h5")):
        yield _read_checkpoint(path)
        return
    with contextlib.ExitStack() as stack:
        try:
            weights = stack.enter_context(_open_h5(stack, path, model_bytes))
            found = _variables(weights, path)
        except tf.errors.NotFoundError:
            raise UserError(
                f"init_from = {path!r}: there is no such file."
            ) from None
        except _DAMAGE as error:
            raise _damaged(path, error) from None
        yield path, found


def _read_checkpoint(path: str) -> tuple[str, list[StoredVariable]]:
    if tf.io.gfile.exists(f"{path}/manifest.json"):
        snapshot, directory = _load(path), posixpath.dirname(path)
    else:
        for directory in (path, f"{path}/checkpoints"):
            newest = next(stateful.usable(directory), None)
            if newest is not None:
                break
        else:
            raise UserError(
                f"init_from = {path!r} holds no usable checkpoint. Name a run "
                "directory, its checkpoints/, one of those, or a .keras or "
                ".weights.h5 file."
            )
        snapshot = newest
    # Only the model's: optimizer and averages are not taken over.
    entries = snapshot.host["variables"].get("model", [])
    return f"{directory}, step {snapshot.step}", [
        _in_memory(entry["path"], snapshot.arrays[contents.key_of("model", i)])
        for i, entry in enumerate(entries)
    ]


def _load(path: str) -> storage.Snapshot:
    snapshot = storage.load(path)
    try:
        contents.check(snapshot)
    except Misfit as error:
        raise UserError(
            f"{path} is not a usable checkpoint: {error}."
        ) from None
    return snapshot


def _in_memory(path: str, array: np.ndarray) -> StoredVariable:
    return StoredVariable(path, tuple(array.shape), lambda: array)


def _open_h5(
    stack: contextlib.ExitStack, path: str, model_bytes: int
) -> h5py.File:
    """Opens the file, or the one in an archive."""
    if is_local(path) and tf.io.gfile.exists(path) and not is_file(path):
        raise UserError(f"init_from = {path!r} is not a file.")
    file = stack.enter_context(_open(path))
    if not path.endswith(".keras"):
        return h5py.File(file, "r")
    archive = stack.enter_context(zipfile.ZipFile(file))
    # Only this entry is read, not the configuration, which names classes.
    entry = archive.getinfo("model.weights.h5")
    # Weights that are stored uncompressed, as Keras does, always pass.
    most = max(_MOST_TIMES * model_bytes + _SMALL_BYTES, entry.compress_size)
    if entry.file_size > most:
        raise UserError(
            f"init_from = {path!r} holds {entry.file_size:,} bytes of weights "
            f"in {entry.compress_size:,}, for a model of {model_bytes:,}. If "
            "that is right, save it uncompressed, as Keras does."
        )
    return h5py.File(io.BytesIO(archive.read(entry)), "r")


def _open(path: str) -> BinaryIO:
    if is_local(path):
        if not tf.io.gfile.exists(path):
            # The error of a remote file, so that the caller has one case.
            raise tf.errors.NotFoundError(None, None, path)
        return open(path, "rb")
    # At once: h5py and zipfile jump about in a file.
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def _variables(weights: h5py.File, path: str) -> list[StoredVariable]:
    # Keras 2 keeps weights by layer under these names.
    if "layer_names" in weights.attrs or _has(weights, "model_weights"):
        raise UserError(
            f"init_from = {path!r} is a file of Keras 2. Load it with Keras "
            "and save it as .keras."
        )
    found: list[StoredVariable] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        parts = name.split("/")
        if not isinstance(item, h5py.Dataset) or parts[0] in _NOT_MODEL:
            return
        # Both would read from other files than the one that the user named.
        if item.is_virtual or item.external:
            raise UserError(
                f"init_from = {path!r}: {name} refers to another file."
            )
        # No error, because the model may not need it.
        if not _holds_numbers(item):
            logging.warning("%s: %s holds no numbers.", path, name)
            return
        found.append(
            StoredVariable(
                _layer_path(weights, parts),
                tuple(item.shape),
                lambda: _read(item, path),
            )
        )

    # visititems does not follow links.
    weights.visititems(visit)
    return found


def _holds_numbers(item: h5py.Dataset) -> bool:
    try:
        kind = item.dtype.kind
    except TypeError:  # A type that NumPy does not have.
        return False
    return item.shape is not None and (kind in "fiub" or _is_bfloat16(item))


def _is_bfloat16(item: h5py.Dataset) -> bool:
    """Whether these are bfloat16, which Keras stores as two untyped bytes."""
    named = item.attrs.get("dtype")
    return str(named) == "bfloat16" and item.dtype == np.dtype("V2")


def _read(item: h5py.Dataset, path: str) -> np.ndarray:
    try:
        array: np.ndarray = np.asarray(item[()])
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    return array.view(ml_dtypes.bfloat16) if _is_bfloat16(item) else array


def _damaged(path: str, error: BaseException) -> UserError:
    why = str(error).strip() or type(error).__name__
    return UserError(
        f"init_from = {path!r} cannot be read as a Keras file: {why}"
    )


def _layer_path(weights: h5py.File, parts: list[str]) -> str:
    """`encoder/0` for `layers/dense_1/vars/0`, by the names of layers.

    Keras numbers the keys by class; a layer's name is an attribute.
    """
    names = []
    for end in range(1, len(parts) - 1):
        outer = weights["/".join(parts[:end])]
        inner = outer["vars"] if _has(outer, "vars") else None
        if isinstance(inner, h5py.Group) and "name" in inner.attrs:
            names.append(str(inner.attrs["name"]))
    return "/".join([*names, parts[-1]])


def _has(group: h5py.Group, name: str) -> bool:
    """Whether a group has a member itself, not a link to another file."""
    return isinstance(group.get(name, getlink=True), h5py.HardLink)
