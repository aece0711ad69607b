"""Reads the weights of a model from wherever they are kept.

No class is looked up and no code in a file is run: only arrays are read.
"""

import io
import posixpath
import zipfile
from typing import NamedTuple

import h5py
import numpy as np
import tensorflow as tf

from trainer import checkpoints, state
from trainer.errors import UserError

# What a weights file holds besides the model.
_NOT_MODEL = {"optimizer", "_optimizer", "metrics", "_metrics"}


class StoredVariable(NamedTuple):
    """A variable in a file.

    Attributes:
        path: layer names and the variable's name, `"encoder/kernel"`; in a
            Keras file its number in the layer, `"encoder/0"`. The model's
            name may come first.
        value: the array.
    """

    path: str
    value: np.ndarray


def read_model(path: str) -> tuple[str, list[StoredVariable]]:
    """Reads the variables of a model, without optimizer and metrics.

    Args:
        path: a run directory, its `checkpoints/`, one checkpoint, or a
            `.keras` or `.weights.h5` file.

    Returns:
        The file or checkpoint that was read, and what it holds.

    Raises:
        UserError: there is nothing that can be read.
    """
    if path.endswith((".keras", ".h5")):
        return path, _read_keras_file(path)
    if tf.io.gfile.exists(f"{path}/manifest.json"):
        snapshot, directory = checkpoints.load(path), posixpath.dirname(path)
    else:
        for directory in (path, f"{path}/checkpoints"):
            newest = checkpoints.load_newest(directory)
            if newest is not None:
                break
        else:
            raise UserError(
                f"init_from = {path!r} holds no usable checkpoint. Name a run "
                "directory, its checkpoints/, one of those, or a .keras or "
                ".weights.h5 file."
            )
        snapshot = newest
    entries = snapshot.host["variables"]["model"]
    return f"{directory}, step {snapshot.step}", [
        StoredVariable(entry["path"], snapshot.arrays[state.key_of("model", i)])
        for i, entry in enumerate(entries)
    ]


def _read_keras_file(path: str) -> list[StoredVariable]:
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
        if path.endswith(".keras"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read("model.weights.h5")
        with h5py.File(io.BytesIO(content), "r") as weights:
            return _read_h5(weights, path)
    except tf.errors.NotFoundError:
        raise UserError(
            f"init_from = {path!r}: there is no such file."
        ) from None
    # h5py says RuntimeError, OSError or KeyError of a damaged file.
    except (
        KeyError,
        OSError,
        RuntimeError,
        ValueError,
        tf.errors.OpError,
        zipfile.BadZipFile,
    ) as error:
        raise UserError(
            f"init_from = {path!r} cannot be read as a Keras file: {error}"
        ) from None


def _read_h5(weights: h5py.File, path: str) -> list[StoredVariable]:
    if "layer_names" in weights.attrs or "model_weights" in weights:
        raise UserError(
            f"init_from = {path!r} is a file of Keras 2. Load it with Keras "
            "and save it as .keras."
        )
    found: list[StoredVariable] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        parts = name.split("/")
        if not isinstance(item, h5py.Dataset) or parts[0] in _NOT_MODEL:
            return
        # Either would read another file than the one that was named.
        if item.is_virtual or item.external:
            raise UserError(
                f"init_from = {path!r}: {name} refers to another file."
            )
        found.append(StoredVariable(_layer_path(weights, parts), item[()]))

    # It follows no links.
    weights.visititems(visit)
    return found


def _layer_path(weights: h5py.File, parts: list[str]) -> str:
    """`encoder/0` for `layers/dense_1/vars/0`, by the names that are kept.

    Keras' keys count classes; a layer's name is an attribute.
    """
    names = []
    for end in range(1, len(parts) - 1):
        inner = weights["/".join(parts[:end])].get("vars")
        if isinstance(inner, h5py.Group) and "name" in inner.attrs:
            names.append(str(inner.attrs["name"]))
    return "/".join([*names, parts[-1]])
