"""Gathers the examples of all replicas on each replica, differentiably.

Each replica writes its rows among zeros, in a part of its own of one tensor:
the sum over replicas is then the whole. So replicas may have different numbers
of rows, which a gather between processes does not allow. In a loop of steps,
such collectives keep the shape of their first call: what is added up has the
same size in each step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError, at_run_time
from trainer.step.context import step_context
from trainer.step.gradients import among_zeros, reduce_sum
from trainer.step.keras.private import tensors_apart


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
    given, put_back = tensors_apart(structure)
    parts = [_checked(part) for part in given]
    replicas = context.num_replicas_in_sync
    if replicas == 1:
        return Gathered(structure, tf.constant(0))
    here = tf.convert_to_tensor(context.replica_id_in_sync_group)
    batch = step_context.batch
    # Eager shapes are known, but may differ between replicas. And what is made
    # of a stand-in is left out.
    may_stand_in = batch is not None and batch.may_stand_in
    is_even = not (tf.executing_eagerly() or may_stand_in)
    room = parts[0].shape[0] if is_even else None
    filled: tf.Tensor | None = None
    if room is not None:  # As many rows on each replica.
        offset, padded = here * room, parts
    else:
        counts = _counts(tf.shape(parts[0])[0], here, replicas)
        offset = tf.reduce_sum(
            tf.where(tf.range(replicas) < here, counts, tf.zeros_like(counts))
        )
        if batch is not None:
            offset = batch.or_zeros(offset)
        room, padded = _padded(parts, counts[here], most=tf.reduce_max(counts))
        # [replicas * room], true for the rows that a replica has.
        filled = tf.reshape(tf.sequence_mask(counts, room), [-1])
    spread = [
        tf.reshape(
            among_zeros(_widened(part), here, replicas),
            tf.concat([[replicas * room], tf.shape(part)[1:]], 0),
        )
        for part in padded
    ]
    # Only floating-point numbers have gradients. Of 32-bit integers,
    # TensorFlow's mirrored strategy adds up only one tensor per call.
    floats = [i for i, part in enumerate(spread) if part.dtype.is_floating]
    others = [[i] for i in range(len(spread)) if i not in floats]
    found: list[Any] = [None] * len(parts)
    for chosen in ([floats] if floats else []) + others:
        summed = _sum(*[spread[i] for i in chosen])
        for i, whole in zip(chosen, summed, strict=True):
            if filled is not None:
                whole = tf.boolean_mask(whole, filled)
            found[i] = tf.cast(whole, parts[i].dtype)
    return Gathered(put_back(found), offset)


def _counts(rows: tf.Tensor, number: tf.Tensor, replicas: int) -> tf.Tensor:
    """How many rows of each replica belong to the whole: `[replicas]`."""
    batch = step_context.batch
    kept = rows if batch is None else batch.or_zeros(rows)
    # The sum holds each replica's number of rows.
    counts = reduce_sum(among_zeros(kept, number, replicas))
    # Where no replica has an example the first one's stand-in is the whole.
    first = tf.where(tf.equal(tf.range(replicas), 0), rows, 0)
    return tf.where(tf.reduce_any(counts > 0), counts, first)


def _sum(*parts: tf.Tensor) -> Sequence[tf.Tensor]:
    """Adds up tensors over replicas, and their gradients likewise."""

    def sum_all(*given: tf.Tensor) -> Any:
        def gradient(*upstream: Any) -> list[tf.Tensor]:
            # To be reduced, the gradients of a step must be on one device.
            dense = [tf.convert_to_tensor(one) for one in upstream]
            return reduce_sum(dense if batch is None else batch.or_zeros(dense))

        batch = step_context.batch
        return reduce_sum(list(given)), gradient

    return tf.nest.flatten(tf.custom_gradient(sum_all)(*parts))


def _padded(
    parts: Sequence[tf.Tensor], rows: tf.Tensor, *, most: tf.Tensor
) -> tuple[Any, list[tf.Tensor]]:
    """Fills up parts to the room for those of any replica.

    Args:
        parts: with equal numbers of rows.
        rows: how many they are.
        most: how many any replica has.

    Returns:
        The room, which between processes is the same in each step, and the
        parts.
    """
    room: Any = most
    here = step_context.batch
    if here is not None and here.most_rows is not None:
        room = here.most_rows()
        if not all(part.shape[1:].is_fully_defined() for part in parts):
            raise UserError(
                f"all_gather got the shapes {[one.shape for one in parts]}. "
                "Between processes all axes but the first must be known while "
                "tracing."
            )
    enough = tf.debugging.assert_less_equal(
        rows,
        room,
        message=at_run_time(
            "all_gather got more rows than there are examples. Between "
            "processes it takes one row for each: put others, such as views "
            "of an example, on an axis of their own."
        ),
    )
    # tf.pad with a negative number would fail with a worse message.
    with tf.control_dependencies([enough]):
        after = room - rows
    made = []
    for part in parts:
        part = part[:rows]
        filled = tf.pad(part, [[0, after], *[[0, 0]] * (part.shape.rank - 1)])
        known = room if isinstance(room, int) else None
        made.append(tf.ensure_shape(filled, [known, *part.shape[1:]]))
    return room, made


def _widened(part: tf.Tensor) -> tf.Tensor:
    # Not every device adds up bytes.
    narrow = part.dtype.size < 4 and not part.dtype.is_floating
    return tf.cast(part, tf.int32) if narrow else part


def _checked(part: Any) -> tf.Tensor:
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
