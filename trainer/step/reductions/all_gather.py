"""Gathers the examples of all replicas on each replica, differentiably.

Each replica writes its rows among zeros, at their position in the global
batch: the sum over replicas is then the whole. So their sizes may differ, which
a gather between processes does not allow. In a loop of steps, such collectives
keep the shape of their first call: what is added up has the same size in each
step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError, at_run_time
from trainer.step.context import step_context
from trainer.step.gradients import among_zeros, reduce_sum


class Gathered(NamedTuple):
    """The global batch, and the position of a replica's batch in it.

    Attributes:
        values: of the structure that was gathered: the replicas' rows, one
            replica after the other.
        offset: int32 scalar, the first row of this replica's own.
    """

    values: Any
    offset: tf.Tensor


def all_gather(structure: Any) -> Gathered:
    """Puts the rows of all replicas together, on every replica.

    Call it in replica context, on all replicas. They may have different
    numbers of rows, or none. The gradient with respect to a replica's rows is
    the sum of all replicas' gradients with respect to the whole. Where all
    replicas compute the same loss from it, weigh that by the replica's share
    of the examples.

    Args:
        structure: dense tensors of shape `[rows, ...]` with equal numbers of
            rows; the other axes are equal on all replicas.

    Raises:
        UserError: a tensor cannot be gathered, or this is not a step.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise UserError(
            "all_gather was called outside of a replica's step. Call it in "
            "train_step, eval_step, per_example_loss or a layer."
        )
    parts = [as_part(part) for part in tf.nest.flatten(structure)]
    if context.num_replicas_in_sync == 1:
        return Gathered(structure, tf.constant(0))
    place = _Place(parts[0], context)
    spread = [place.amid_zeros(part) for part in parts]
    # Only floating-point numbers have gradients. Of 32-bit integers,
    # TensorFlow's mirrored strategy adds up only one tensor per call.
    floats = [i for i, part in enumerate(spread) if part.dtype.is_floating]
    others = [[i] for i in range(len(spread)) if i not in floats]
    found: list[Any] = [None] * len(parts)
    for chosen in ([floats] if floats else []) + others:
        summed = _sum(*[spread[i] for i in chosen])
        for i, whole in zip(chosen, summed, strict=True):
            found[i] = tf.cast(place.without_gaps(whole), parts[i].dtype)
    return Gathered(tf.nest.pack_sequence_as(structure, found), place.offset)


def _sum(*parts: tf.Tensor) -> Sequence[tf.Tensor]:
    """Adds up tensors over replicas, and their gradients likewise."""

    def sum_all(*given: tf.Tensor) -> Any:
        def gradient(*upstream: Any) -> list[tf.Tensor]:
            # To be reduced, the gradients of a step must be on one device.
            return reduce_sum([tf.convert_to_tensor(one) for one in upstream])

        return reduce_sum(list(given)), gradient

    return tf.nest.flatten(tf.custom_gradient(sum_all)(*parts))


class _Place:
    """The position of a replica's rows among those of all replicas.

    Each replica has a slot, of a size that is known while tracing. If there is
    no such size, there is exactly as much room as there are rows.
    """

    def __init__(self, part: tf.Tensor, context: Any) -> None:
        self._replicas = context.num_replicas_in_sync
        self._here = tf.convert_to_tensor(context.replica_id_in_sync_group)
        # Eager shapes are known, but may differ between replicas.
        self._slot = None if tf.executing_eagerly() else part.shape[0]
        self._is_full = self._slot is not None  # As many on each replica.
        if self._is_full:
            self.offset = self._here * self._slot
            return
        # Where the run has several processes, shapes must not change from step
        # to step.
        here = step_context.batch
        if here is not None and here.most_rows is not None:
            self._slot = here.most_rows()
        self._rows = tf.shape(part)[0]
        # [replicas]: the sum holds each replica's number of rows.
        own = among_zeros(self._rows, self._here, self._replicas)
        self._counts = reduce_sum(own)
        is_before = tf.range(self._replicas) < self._here
        before = tf.where(is_before, self._counts, 0)
        self.offset = tf.reduce_sum(before)

    def amid_zeros(self, part: tf.Tensor) -> tf.Tensor:
        """This replica's rows, and zeros for those of all others."""
        if part.dtype.size < 4 and not part.dtype.is_floating:
            part = tf.cast(part, tf.int32)  # Not every device adds up bytes.
        if self._slot is not None:
            return self._in_slot(part if self._is_full else self._filled(part))
        # [rows before, own rows, rows after], as long as the global batch.
        after = tf.reduce_sum(self._counts) - self.offset - self._rows
        return self._padded(part, self.offset, after, rows=None)

    def without_gaps(self, whole: tf.Tensor) -> tf.Tensor:
        """The sum over replicas without the ends of slots."""
        # Full slots have no gaps, and without slots rows are adjacent.
        if self._is_full or self._slot is None:
            return whole
        # [replicas, slot], true for the first rows of each slot.
        filled = tf.sequence_mask(self._counts, self._slot)
        return tf.boolean_mask(whole, tf.reshape(filled, [-1]))

    def _filled(self, part: tf.Tensor) -> tf.Tensor:
        if not part.shape[1:].is_fully_defined():
            raise UserError(
                f"all_gather got the shape {part.shape}. Between processes "
                "all axes but the first must be known while tracing."
            )
        enough = tf.debugging.assert_less_equal(
            self._rows,
            self._slot,
            message=at_run_time(
                "all_gather got more rows than there are examples. Between "
                "processes it takes one row for each: put others, such as "
                "views of an example, on an axis of their own."
            ),
        )
        # tf.pad with a negative number would fail with a worse message.
        with tf.control_dependencies([enough]):
            after = self._slot - self._rows
        return self._padded(part, 0, after, rows=self._slot)

    def _padded(
        self, part: tf.Tensor, before: Any, after: Any, *, rows: int | None
    ) -> tf.Tensor:
        rest = [[0, 0]] * (part.shape.rank - 1)
        padded = tf.pad(part, [[before, after], *rest])
        return tf.ensure_shape(padded, [rows, *part.shape[1:]])

    def _in_slot(self, part: tf.Tensor) -> tf.Tensor:
        # [replicas, slot, ...] -> [replicas * slot, ...]
        slots = among_zeros(part, self._here, self._replicas)
        rows = slots.shape[0] * self._slot
        return tf.reshape(slots, tf.concat([[rows], tf.shape(part)[1:]], 0))


def as_part(part: Any) -> tf.Tensor:
    """A tensor as it is gathered.

    Raises:
        UserError: it cannot be.
    """
    if isinstance(part, keras.Variable | tf.Variable) or not tf.is_tensor(part):
        part = tf.convert_to_tensor(part)
    if not isinstance(part, tf.Tensor):
        raise UserError(
            f"all_gather got a {type(part).__name__}. Valid: dense tensors of "
            "shape [rows, ...]."
        )
    if part.dtype == tf.string or not part.shape.rank:
        raise UserError(
            f"all_gather got a {part.dtype.name} of shape {part.shape}. Valid: "
            "numbers or booleans of shape [rows, ...]."
        )
    return part
