"""Gives pieces one shape, for strategies that compile for fixed shapes."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from trainer.data.batches import endless
from trainer.errors import UserError

# `padded` or `exact`: gives every piece a number of rows.
Fit: TypeAlias = Callable[[tf.data.Dataset, int], tf.data.Dataset]


class Padded(NamedTuple):
    """A piece that was filled up with padding.

    Attributes:
        batch: what the data yields, of shape `[size, ...]` in every part.
        real: float32 of shape `[size]`, 1 for an example, 0 for padding.
    """

    batch: Any
    real: tf.Tensor


def padded(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Fills pieces up to `size` rows, and marks which rows are examples.

    Padding repeats the most recent example, so that a model only gets values
    that occur in the data. Only before the first example is it zeros.

    Args:
        dataset: pieces of at most `size` rows, some perhaps with none.
        size: rows in a full piece.

    Returns:
        An endless dataset of `Padded`.

    Raises:
        UserError: a part of the pieces has no fixed shape.
    """
    specs = _fixed_specs(dataset, size)
    # The state of the scan: one row to pad empty pieces with.
    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros([1, *spec.shape[1:]], spec.dtype), specs
    )

    def fill(spare: Any, piece: Any) -> tuple[Any, Padded]:
        count = tf.shape(tf.nest.flatten(piece)[0])[0]
        # Without the check, rows beyond `size` would be dropped silently.
        enough = tf.debugging.assert_less_equal(
            count, size, f"A batch holds more than {size} examples a replica."
        )
        # The piece's rows, and after them the spare row: never empty.
        pool = tf.nest.map_structure(
            lambda part, row: tf.concat([part, row], 0), piece, spare
        )
        with tf.control_dependencies([enough]):
            # If the piece is empty, row 0 of the pool is the spare row.
            last = tf.maximum(count - 1, 0)
        # [0, 1, ..., last, last, ...]: a gather of fixed size.
        rows = tf.minimum(tf.range(size), last)
        full = tf.nest.map_structure(
            lambda part, spec: tf.ensure_shape(
                tf.gather(part, rows), spec.shape
            ),
            pool,
            specs,
        )
        spare = tf.nest.map_structure(
            lambda part: tf.ensure_shape(
                tf.gather(part, last[tf.newaxis]), [1, *part.shape[1:]]
            ),
            pool,
        )
        real = tf.cast(tf.range(size) < count, tf.float32)
        return spare, Padded(full, real)

    return _buffered(dataset.scan(nothing, fill))


def exact(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Declares that every piece has `size` rows; another number is an error.

    Args:
        dataset: pieces of `size` rows.
        size: rows in a piece.

    Returns:
        The same pieces in an endless dataset, of fully known shape.

    Raises:
        UserError: a part of the pieces has no fixed shape, or has another
            number of rows.
    """
    specs = _fixed_specs(dataset, size)
    if specs == dataset.element_spec:
        return dataset
    given = tf.nest.flatten(dataset.element_spec)[0].shape[0]
    if given not in (None, size):
        raise UserError(
            f"The data has {given} rows a replica in every batch, instead of "
            f"{size}."
        )

    # tf.data passes the parts of a tuple as separate arguments.
    def declare(*piece: Any) -> Any:
        return tf.nest.map_structure(
            lambda part, spec: tf.ensure_shape(part, spec.shape),
            piece[0] if len(piece) == 1 else piece,
            specs,
        )

    return _buffered(dataset.map(declare))


def _buffered(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return endless(dataset).prefetch(tf.data.AUTOTUNE)


def _fixed_specs(dataset: tf.data.Dataset, size: int) -> Any:
    """The dataset's specs with `size` rows in each part."""
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
            "strategy compiles its step for fixed shapes: make it dense."
        )
    shape = spec.shape
    if not shape.rank or not shape[1:].is_fully_defined():
        raise UserError(
            f"In the data, {part} has the shape {shape}. This strategy "
            "compiles its step for fixed shapes: pad or resize each example "
            "to one shape."
        )
