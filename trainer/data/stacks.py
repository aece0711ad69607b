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
# Of rows that a step reads by itself a stack holds only the numbers, and may be
# much longer; but the first one must not take long.
MOST_OF_NUMBERS, MOST_ROWS = 1000, 1 << 17
# Larger arrays stay with the input pipeline. On a CPU they are not copied; an
# accelerator has to hold them beside the model.
MOST_ON_DEVICE = 1 << 30
# XLA has no such tensors.
_NOT_NUMBERS = (tf.string, tf.resource, tf.variant)


class Rows(NamedTuple):
    """Batches as numbers of rows, which a step gathers on its device.

    Attributes:
        columns: a structure of tensors of shape `[examples, ...]`.
        numbers: int64, of shape `[size, batch]`.
    """

    columns: Any
    numbers: tf.Tensor

    def batch(self, index: tf.Tensor) -> Any:
        """Gathers one of the batches.

        Args:
            index: integer scalar.
        """
        numbers = self.numbers[index]
        return tf.nest.map_structure(
            lambda column: tf.gather(column, numbers), self.columns
        )


class Stack(NamedTuple):
    """Consecutive batches of a run.

    Attributes:
        batches: a structure of tensors of shape `[size, batch, ...]`; or, where
            `Batches.columns` are there, the int64 numbers of their rows, of
            shape `[size, batch]`.
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


def row_stack_size(*, batch_size: int, full_batches: int | None) -> int:
    """How many batches a stack of row numbers holds.

    Args:
        batch_size: examples in a batch.
        full_batches: see `stack_size`.
    """
    most = min(MOST_OF_NUMBERS, max(MOST_ROWS // batch_size, 1))
    if full_batches is None:
        return most
    return min(most, max(full_batches, 1))


def fit_on_device(columns: Any) -> bool:
    """Whether arrays are few enough bytes to be kept beside a model.

    Args:
        columns: a structure of tensors; `None` if there are none.
    """
    leaves = tf.nest.flatten(columns)
    return all(
        isinstance(leaf, tf.Tensor) and leaf.dtype not in _NOT_NUMBERS
        for leaf in leaves
    ) and (
        sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)
        <= MOST_ON_DEVICE
    )


def one_of(batches: Any, index: tf.Tensor) -> Any:
    """One batch of a stack.

    Args:
        batches: `Stack.batches`, or `Rows`.
        index: integer scalar.
    """
    if isinstance(batches, Rows):
        return batches.batch(index)
    return tf.nest.map_structure(lambda part: part[index], batches)


def is_like_pieces(batches: Any, start: int = 0) -> bool:
    """Whether the first batch of a stack is the one that a step would read.

    Args:
        batches: the `Batches` of a run.
        start: the number of batches to pass over.
    """
    single = next(iter(batches.whole(start)))
    stack: Stack = next(iter(batches.stacks(start=start)))
    columns, held = batches.columns(), stack.batches
    first = one_of(
        held if columns is None else Rows(columns, held), stack.begin
    )
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
