"""Stacks of batches of one shape, for a compiled loop over many steps."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.runtime.graph import plain

# More batches gain little: by then a step costs as much in the middle of a
# stack as a call costs at its end.
MOST_BATCHES = 50
# A few of them are made and kept ready while one is used.
MOST_BYTES = 64 << 20
READERS, READY = 2, 1
# XLA has no such tensors.
_NOT_NUMBERS = (tf.string, tf.resource, tf.variant)


class Stack(NamedTuple):
    """Consecutive batches of a run.

    Attributes:
        batches: a structure of tensors of shape `[size, batch, ...]`.
        begin: int32 scalar, the first one to use.
        end: int32 scalar, the one after the last to use. Others repeat
            examples, so that all stacks have one shape.
    """

    batches: Any
    begin: tf.Tensor
    end: tf.Tensor


def why_not_stacked(spec: Any, *, short: bool) -> str | None:
    """Why batches cannot be stacked for XLA; `None` if they can.

    Args:
        spec: the element spec of the batches.
        short: whether an epoch's last batch may be smaller. The source of the
            batches then stacks it by itself.
    """
    for leaf in tf.nest.flatten(spec):
        if not isinstance(leaf, tf.TensorSpec):
            return f"the data holds a {type(leaf).__name__}, not a tensor"
        if leaf.dtype in _NOT_NUMBERS:
            return f"the data holds a tensor of {leaf.dtype.name}"
        if leaf.shape.rank == 0:
            return "the data yields single examples"
        shape = leaf.shape[1:] if short else leaf.shape
        if not shape.is_fully_defined():
            return (
                f"the data has batches of the shape {leaf.shape}, which does "
                "not say how large they are"
            )
    return None


def stack_size(spec: Any, *, batch_size: int, full_batches: int | None) -> int:
    """How many batches a stack holds.

    Args:
        spec: the element spec of the batches.
        batch_size: examples in a batch.
        full_batches: batches of this size in an epoch; `None` where stacks
            need not end with an epoch.

    Returns:
        At most `MOST_BATCHES`, and as many as fit into `MOST_BYTES`, but at
        least one. It depends on nothing else: a run that goes on elsewhere
        gets the same.
    """
    row = sum(
        int(np.prod(leaf.shape[1:], dtype=np.int64)) * leaf.dtype.size
        for leaf in tf.nest.flatten(spec)
    )
    most = min(MOST_BATCHES, max(MOST_BYTES // max(row * batch_size, 1), 1))
    if full_batches is None:
        return most
    if full_batches == 0:
        return 1
    # As even as can be: fewer batches are read to be thrown away.
    return -(-full_batches // -(-full_batches // most))


def is_like_pieces(batches: Any, start: int = 0) -> bool:
    """Whether the first batch of a stack is the one that a step would read.

    Args:
        batches: the `Batches` of a run.
        start: the number of batches to pass over.
    """
    single = next(iter(batches.whole(start)))
    stack: Stack = next(iter(batches.stacks(start=start)))
    first = tf.nest.map_structure(lambda part: part[stack.begin], stack.batches)
    try:
        tf.nest.assert_same_structure(single, first)
    except (TypeError, ValueError):
        return False
    return all(
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.numpy().tobytes() == other.numpy().tobytes()
        for one, other in zip(
            tf.nest.flatten(single), tf.nest.flatten(first), strict=True
        )
    )


def stack_pieces(
    pieces: tf.data.Dataset, *, size: int, stop: int | None
) -> tf.data.Dataset:
    """Stacks the batches of a dataset, all of one static shape.

    Args:
        pieces: whole batches.
        size: batches in a stack.
        stop: how many batches are wanted; `None` means all of an endless
            dataset.

    Returns:
        A dataset of `Stack`.
    """
    # `map` takes tuples apart, also those of one element.
    is_tuple = type(pieces.element_spec) is tuple

    def full(*batch: Any) -> Stack:
        whole = batch if is_tuple else batch[0]
        return Stack(whole, tf.constant(0), tf.constant(size))

    def filled(*batch: Any) -> Stack:
        whole = batch if is_tuple else batch[0]
        count = tf.shape(tf.nest.flatten(whole)[0])[0]
        # Repeats the last one.
        rows = tf.minimum(tf.range(size), count - 1)
        batches = tf.nest.map_structure(lambda t: tf.gather(t, rows), whole)
        return Stack(batches, tf.constant(0), count)

    if stop is None:
        return pieces.batch(size, drop_remainder=True).map(plain(full))
    return pieces.take(stop).batch(size).map(plain(filled))
