"""Gradients, dense and sparse: reduce, scale, add, and their global norm."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def reduce_sum(structure: Any) -> Any:
    """Sums every tensor of a structure over all replicas, in one call.

    Call it in replica context. The strategy packs the tensors into few
    transfers.

    Args:
        structure: tensors, `tf.IndexedSlices` and `None`s.

    Returns:
        The same structure, equal on every replica.
    """
    # Without expand_composites, so that IndexedSlices are reduced as such and
    # stay sparse.
    leaves = tf.nest.flatten(structure)
    # What comes out of a loop has no device, and all_reduce needs one.
    present = [tf.identity(leaf) for leaf in leaves if leaf is not None]
    context = tf.distribute.get_replica_context()
    # One call with all tensors, not one call for each: the strategy can then
    # pack them, and replicas cannot meet in different orders.
    if present and context.num_replicas_in_sync > 1:
        present = context.all_reduce(tf.distribute.ReduceOp.SUM, present)
    reduced = iter(present)
    return tf.nest.pack_sequence_as(
        structure,
        [None if leaf is None else next(reduced) for leaf in leaves],
    )


def among_zeros(part: tf.Tensor, number: Any, count: int) -> tf.Tensor:
    """A tensor as one of `count`, all others being zero.

    Where each replica has a number of its own, the sum over replicas holds
    the tensors of all.

    Args:
        part: of any shape.
        number: integer scalar, its index.
        count: how many there are.

    Returns:
        Of shape `[count, *part.shape]`.
    """
    is_own = tf.range(count) == tf.cast(number, tf.int32)
    # [count, 1, ..., 1], to broadcast against [1, *part.shape].
    is_own = tf.reshape(is_own, [-1] + [1] * part.shape.rank)
    # tf.where, not a product: zero times infinity is NaN.
    return tf.where(is_own, part[tf.newaxis], tf.zeros([], part.dtype))


def scale(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """Multiplies one gradient, in its own dtype; `None` stays `None`."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def add(left: Gradient, right: Gradient) -> Gradient:
    """Adds two gradients of one variable; `None` counts as zero."""
    if left is None or right is None:
        return right if left is None else left
    # Dense, even if both are sparse: IndexedSlices have no addition.
    return tf.convert_to_tensor(left) + tf.convert_to_tensor(right)


def densify(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Turns sparse gradients into dense ones, to add up micro-batches."""
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def rows_once(
    gradients: Sequence[Gradient], *, dense: bool = False
) -> list[Gradient]:
    """Adds up a sparse gradient's summands of one row of weights.

    An embedding's gradient has a row for each lookup in the batch. Squares,
    norms and limits of these rows are not those of the gradient.

    Args:
        gradients: reduced ones; only sparse ones change.
        dense: make them dense instead, as XLA requires.
    """
    return [
        _rows_once(g, dense=dense) if isinstance(g, tf.IndexedSlices) else g
        for g in gradients
    ]


def _rows_once(gradient: tf.IndexedSlices, *, dense: bool) -> Gradient:
    if dense:
        return tf.convert_to_tensor(gradient)
    # [rows looked up] -> each distinct row of weights once.
    rows, position = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(
        gradient.values, position, tf.size(rows)
    )
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def takes_rows_as_they_come(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an update by rows adds up to the update by their sum."""
    clips = optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm
    # SGD adds row after row, so the summands of a row may come one by one,
    # unless they are clipped. A subclass may do anything with them.
    return type(optimizer) is keras.optimizers.SGD and not any(clips)


def all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether no gradient holds an infinity or a NaN: a boolean scalar."""
    return tf.reduce_all(
        [
            tf.reduce_all(tf.math.is_finite(value))
            for value in _values(gradients)
        ]
    )


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The Euclidean norm over all gradients: a float32 scalar.

    It is infinite or NaN if a value is, or if its square is too large.

    Args:
        gradients: sparse ones with each row once, see `rows_once`.
    """
    squares = [
        # Squares of float16 numbers would overflow above 255.
        tf.reduce_sum(tf.square(tf.cast(value, tf.float32)))
        for value in _values(gradients)
    ]
    return tf.sqrt(tf.add_n(squares)) if squares else tf.constant(0.0)


def _values(gradients: Sequence[Gradient]) -> list[tf.Tensor]:
    """The numbers that gradients hold; of sparse ones, the rows."""
    return [
        g.values if isinstance(g, tf.IndexedSlices) else g
        for g in gradients
        if g is not None
    ]
