"""Gathers the pieces of a global batch, in order, on every replica.

Each piece is written into its own slot of a buffer of zeros: the sum over
replicas and micro-batches is then the whole batch. A slot has a fixed number of
rows, because collectives between processes keep the shape of their first call.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.errors import UserError
from trainer.step.gradients import among_zeros

# Names what is computed between replicas, on a TPU by its host: its shapes may
# depend on the data.
BETWEEN_REPLICAS = "between_replicas"


class Slots(NamedTuple):
    """The position of a replica's piece in its global batch.

    Attributes:
        number: integer scalar, this piece's number.
        pieces: how many pieces make a global batch.
        rows: the most examples in a piece.
    """

    number: tf.Tensor
    pieces: int
    rows: int


def slot_rows(batch_size: int, *, micro: int, num_replicas: int) -> int:
    """The most examples that `trainer.data.Cut` gives a replica."""
    # -(-a // b) rounds up.
    of_a_micro_batch = -(-batch_size // micro)
    return -(-of_a_micro_batch // num_replicas)


def write_slots(leaves: Sequence[tf.Tensor], slots: Slots) -> list[tf.Tensor]:
    """Writes a piece's tensors into its slot.

    Args:
        leaves: of shape `[examples, ...]`.
        slots: says which one.

    Returns:
        For each tensor one of shape `[pieces, rows, ...]`.
    """
    return [_write(leaf, slots) for leaf in leaves]


def check_rows(leaves: Sequence[Any], real: tf.Tensor, metric: str) -> None:
    """Checks that there is one row for each example.

    Raises:
        UserError: it is known while tracing that there is not.
    """
    message = (
        f"The state of the metric {metric!r} does not add up, so replicas must "
        "exchange what it is updated by, example by example. Give it one row "
        "for each example."
    )
    for leaf in leaves:
        rank = leaf.shape.rank
        known = rank and leaf.shape[0], real.shape[0]
        if not rank or (None not in known and known[0] != known[1]):
            raise UserError(message)
        # Where tracing cannot tell, each step checks.
        tf.debugging.assert_equal(tf.shape(leaf)[0], tf.shape(real)[0], message)


def read_slots(
    buffers: Sequence[tf.Tensor],
    marks: tf.Tensor,
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """The whole batch from the summed buffers.

    Args:
        buffers: see `write`.
        marks: of shape `[pieces, rows]`, positive where there is an example.
        dtypes: those of the tensors that were written.
    """
    present = tf.reshape(marks, [-1]) > 0

    def join(buffer: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        shape = tf.concat([[-1], tf.shape(buffer)[2:]], 0)
        # [pieces, rows, ...] -> [pieces * rows, ...]
        flat = tf.ensure_shape(
            tf.reshape(buffer, shape), [None, *buffer.shape[2:]]
        )
        return tf.cast(tf.boolean_mask(flat, present), dtype)

    with tf.name_scope(BETWEEN_REPLICAS):
        return [
            join(buffer, dtype)
            for buffer, dtype in zip(buffers, dtypes, strict=True)
        ]


def _write(leaf: Any, slots: Slots) -> tf.Tensor:
    if not isinstance(leaf, tf.Tensor) or leaf.dtype == tf.string:
        kind = type(leaf).__name__ if leaf is not None else "nothing"
        raise UserError(
            f"A metric whose state does not add up gets a {kind} of values, "
            "which replicas cannot exchange: give it dense numbers."
        )
    # Every device adds up these types, and they hold narrower ones exactly.
    narrow = leaf.dtype.is_bool or leaf.dtype.size < 4
    if narrow:
        wide = tf.float32 if leaf.dtype.is_floating else tf.int32
        leaf = tf.cast(leaf, wide)
    spare = slots.rows - tf.shape(leaf)[0]
    rest = [[0, 0]] * (leaf.shape.rank - 1)
    filled = tf.pad(leaf, [[0, spare], *rest])
    filled = tf.ensure_shape(filled, [slots.rows, *leaf.shape[1:]])
    return among_zeros(filled, slots.number, slots.pieces)
