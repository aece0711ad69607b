"""Stacks of batches of one shape, for a compiled loop over many steps."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

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
NOT_NUMBERS = (tf.string, tf.resource, tf.variant)


class Stack(NamedTuple):
    """Consecutive batches of a run.

    Attributes:
        batches: a structure of tensors of shape `[size, batch, ...]`; or, where
            `Stacks.columns` are there, the int64 numbers of their rows, of
            shape `[size, batch]`.
        count: int32 scalar, how many to use, from the first one on. Others
            repeat examples, so that all stacks have one shape.
    """

    batches: Any
    count: tf.Tensor


class Stacks(NamedTuple):
    """All stacks from a step on.

    Attributes:
        dataset: endless, of `Stack`.
        columns: a structure of tensors of shape `[examples, ...]`, if stacks
            hold the numbers of their rows; `None` if they hold the batches.
    """

    dataset: tf.data.Dataset
    columns: Any = None


class Rows(NamedTuple):
    """Batches as numbers of rows, which a step gathers on its device.

    Attributes:
        columns: see `Stacks`.
        numbers: int64, of shape `[size, batch]`.
    """

    columns: Any
    numbers: tf.Tensor


def one_of(batches: Any, index: tf.Tensor) -> Any:
    """One batch of a stack.

    Args:
        batches: `Stack.batches`, or `Rows`.
        index: integer scalar.
    """
    if isinstance(batches, Rows):
        numbers = batches.numbers[index]
        return tf.nest.map_structure(
            lambda column: tf.gather(column, numbers), batches.columns
        )
    return tf.nest.map_structure(lambda part: part[index], batches)


def stack_size(spec: Any, batch_size: int) -> int:
    """How many batches a stack holds at most.

    Args:
        spec: the element spec of the batches.
        batch_size: examples in a batch.

    Returns:
        At most `MOST_BATCHES`, and as many as fit into `MOST_BYTES`, but at
        least one.
    """
    row = sum(
        int(np.prod(leaf.shape[1:], dtype=np.int64)) * leaf.dtype.size
        for leaf in tf.nest.flatten(spec)
    )
    return min(MOST_BATCHES, max(MOST_BYTES // max(row * batch_size, 1), 1))


def fit_on_device(columns: Any) -> bool:
    """Whether arrays are few enough bytes to be kept beside a model.

    Args:
        columns: a structure of tensors; `None` if there are none.
    """
    leaves = tf.nest.flatten(columns)
    return all(
        isinstance(leaf, tf.Tensor) and leaf.dtype not in NOT_NUMBERS
        for leaf in leaves
    ) and (
        sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)
        <= MOST_ON_DEVICE
    )
