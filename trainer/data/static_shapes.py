"""Pieces of a fixed shape, for strategies that compile their step for it."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from trainer.data.batches import endless
from trainer.errors import UserError
from trainer.runtime.graph import plain

# `padded` or `exact`: gives every piece the same number of rows.
Fit: TypeAlias = Callable[[tf.data.Dataset, int], tf.data.Dataset]


class Padded(NamedTuple):
    """A piece with padding.

    Attributes:
        batch: the data; every part has the shape `[size, ...]`.
        real: float32 of shape `[size]`, 1 for an example, 0 for padding.
    """

    batch: Any
    real: tf.Tensor


def padded(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Pads pieces to `size` rows, and marks which rows are examples.

    Padding repeats the last example, so that the model never gets a value that
    is not in the data. Before the first example, it is zeros.

    Args:
        dataset: pieces of at most `size` rows, possibly none.
        size: rows in a full piece.

    Returns:
        An endless dataset of `Padded`.

    Raises:
        UserError: a part of the pieces has no fixed shape.
    """
    specs = _fixed_specs(dataset, size)
    # The spare row before the first example.
    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros([1, *spec.shape[1:]], spec.dtype), specs
    )

    def fill(spare: Any, piece: Any) -> tuple[Any, Padded]:
        count = tf.shape(tf.nest.flatten(piece)[0])[0]
        enough = tf.debugging.assert_less_equal(
            count, size, f"A batch holds more than {size} examples per replica."
        )
        pool = tf.nest.map_structure(
            lambda part, row: tf.concat([part, row], 0), piece, spare
        )
        with tf.control_dependencies([enough]):
            # For an empty piece, this is the spare row.
            last = tf.maximum(count - 1, 0)
        rows = tf.minimum(tf.range(size), last)
        full = tf.nest.map_structure(
            lambda part, spec: tf.ensure_shape(
                tf.gather(part, rows), spec.shape
            ),
            pool,
            specs,
        )
        # `scan` requires a state of one shape.
        spare = tf.nest.map_structure(
            lambda part: tf.ensure_shape(
                tf.gather(part, last[tf.newaxis]), [1, *part.shape[1:]]
            ),
            pool,
        )
        real = tf.cast(tf.range(size) < count, tf.float32)
        return spare, Padded(full, real)

    # `scan` carries the last example on, because a whole piece may be empty.
    return _buffered(dataset.scan(nothing, plain(fill)))


def exact(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Declares that every piece has `size` rows; any other number is an error.

    Args:
        dataset: pieces of `size` rows.
        size: rows in a piece.

    Returns:
        The same pieces in an endless dataset, with a static shape.

    Raises:
        UserError: a part of the pieces has no fixed shape, or has another
            number of rows.
    """
    specs = _fixed_specs(dataset, size)
    # Endless already, as `Batches.pieces` promises.
    if specs == dataset.element_spec:
        return dataset
    given = tf.nest.flatten(dataset.element_spec)[0].shape[0]
    if given not in (None, size):
        raise UserError(
            f"The data has {given} rows per replica in every batch instead of "
            f"{size}."
        )

    def declare(*piece: Any) -> Any:
        return tf.nest.map_structure(
            lambda part, spec: tf.ensure_shape(part, spec.shape),
            piece[0] if len(piece) == 1 else piece,
            specs,
        )

    return _buffered(dataset.map(plain(declare)))


def _buffered(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return endless(dataset).prefetch(tf.data.AUTOTUNE)


def _fixed_specs(dataset: tf.data.Dataset, size: int) -> Any:
    """Returns the dataset's specs with `size` rows in each part."""
    for path, spec in keras.tree.flatten_with_path(dataset.element_spec):
        _require_fixed(" / ".join(map(str, path)), spec)
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec([size, *spec.shape[1:]], spec.dtype),
        dataset.element_spec,
    )


def _require_fixed(path: str, spec: Any) -> None:
    part = f"part {path} of a batch" if path else "a batch"
    if not isinstance(spec, tf.TensorSpec):
        raise UserError(
            f"In the data, {part} is a {spec.value_type.__name__}. This "
            "strategy compiles its step for fixed shapes. Make it dense."
        )
    shape = spec.shape
    if not shape.rank or not shape[1:].is_fully_defined():
        raise UserError(
            f"In the data, {part} has the shape {shape}. This strategy "
            "compiles its step for fixed shapes. Pad or resize each example "
            "to one shape."
        )
