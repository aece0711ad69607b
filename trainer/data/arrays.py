"""Makes arrays of what users hold their data in, or says why not."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.data.batches import name_of_part
from trainer.data.examples import is_sparse
from trainer.errors import UserError


def as_arrays(part: Any, name: str) -> Any:
    """Makes arrays of `x`, `y` or `sample_weight`.

    Floats get Keras' `floatx`, as `fit` gives it to them.

    Args:
        part: an array, a pandas frame or series, a list of numbers, or a list
            or dict of these by input.
        name: of the part, such as `"x"`, for messages.

    Returns:
        NumPy arrays, tensors or sparse matrices, in the same structure.

    Raises:
        UserError: it is none of these, or holds objects.
    """
    if part is None or is_sparse(part) or isinstance(part, tf.RaggedTensor):
        return part
    if isinstance(part, Mapping):
        return {k: as_arrays(v, f"{name}[{k!r}]") for k, v in part.items()}
    if isinstance(part, list | tuple) and not _is_of_numbers(part):
        return tuple(
            as_arrays(one, f"{name}[{i}]") for i, one in enumerate(part)
        )
    return _as_array(part, name)


def check_dtype(array: np.ndarray, name: str) -> None:
    """Raises `UserError` for what a tensor cannot hold, such as dates."""
    try:
        tf.as_dtype(array.dtype)
    except TypeError:
        raise UserError(
            f"{name} has the dtype {array.dtype}, which no tensor can have. "
            "Make it numbers."
        ) from None


def without_none(x: Any) -> Any:
    """Inputs by name without those that are `None`: no batch can hold these."""
    if not isinstance(x, Mapping):
        return x
    return {name: one for name, one in x.items() if one is not None}


def check_rows(parts: Mapping[str, Any]) -> None:
    """Checks that all parts have a row for each example.

    Args:
        parts: arrays by name, as messages say it; `None` is left out.

    Raises:
        UserError: two lengths differ, or there is no example.
    """
    rows = {
        name_of_part(name, path): int(leaf.shape[0])
        for (name, *path), leaf in keras.tree.flatten_with_path(dict(parts))
        if leaf is not None
    }
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name} has {n}" for name, n in rows.items())
        raise UserError(
            f"Numbers of examples differ: {listed}. Each example needs one "
            "row in each."
        )
    if not all(rows.values()):
        raise UserError(f"{next(iter(rows))} has no examples.")


def weights_of_all(weights: Any, rows: int) -> Any:
    """Sample weights by output, 1 where an output has none, as in Keras.

    Args:
        weights: arrays by output, or one for all; `None` for none.
        rows: the number of examples.
    """
    if all(leaf is None for leaf in tf.nest.flatten(weights)):
        return None
    return tf.nest.map_structure(
        lambda leaf: (
            np.ones(rows, keras.config.floatx()) if leaf is None else leaf
        ),
        weights,
    )


def _is_of_numbers(part: Any) -> bool:
    """Whether lists hold plain values, and no arrays; looks at the first."""
    # No array has more dimensions, and a list may be in itself.
    for _ in range(64):
        if not (isinstance(part, list | tuple) and part):
            break
        part = part[0]
    plain = bool | int | float | str | bytes | np.number
    return isinstance(part, list | tuple | plain)


def _as_array(part: Any, name: str) -> np.ndarray:
    """An array of what a tensor can hold."""
    if isinstance(part, list | tuple):
        array = _of_list(part, name)
    elif hasattr(part, "to_numpy"):
        array = part.to_numpy()
    # A symbolic one has the method, and no values.
    elif isinstance(part, keras.KerasTensor) or not hasattr(part, "__array__"):
        raise UserError(
            f"{name} is a {type(part).__name__}. Valid: an array, a pandas "
            "frame, a list of numbers, a dict or list of these by input, a "
            "tf.data.Dataset of batches, a generator of them, "
            "trainer.Examples, trainer.Batches, or a keras.utils.PyDataset."
        )
    elif np.ma.is_masked(part):
        raise UserError(
            f"{name} is a masked array, and no tensor has a mask: the values "
            "under it would count. Fill them, as with x.filled(0), and give "
            "examples that do not count a sample_weight of 0."
        )
    else:
        array = np.asarray(part)
    if array.dtype == object:
        array = _of_objects(array, name)
    if not array.ndim:
        raise UserError(
            f"{name} is a single value ({array.item()!r}); examples need an "
            "array with one row each."
        )
    # NumPy knows bfloat16 as an extension, which is of no kind.
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        array = array.astype(keras.config.floatx(), copy=False)
    check_dtype(array, name)
    return array


def _of_list(part: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(part)
    except ValueError as error:
        raise UserError(
            f"{name} cannot be made into an array: {error} Pad rows to equal "
            "length, for example with keras.utils.pad_sequences."
        ) from None


def _of_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Objects that are all numbers, or all text, as such an array."""
    try:
        found = np.asarray(array.tolist())
    except ValueError:
        found = array
    if found.dtype == object or found.ndim < array.ndim:
        first = next(iter(array.ravel()), None)
        raise UserError(
            f"{name} holds Python objects (the first is a "
            f"{type(first).__name__}), which no tensor can hold. Make it an "
            "array of numbers: rows of one length, and no None."
        )
    return found
