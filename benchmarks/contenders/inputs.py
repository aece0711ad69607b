"""Shuffled, endless batches of arrays in `tf.data`, in two ways."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def rows(arrays: tuple[Any, Any], batch: int) -> tf.data.Dataset:
    """As the guides of TensorFlow write it: shuffle rows, then batch them."""
    return (
        tf.data.Dataset.from_tensor_slices(arrays)
        .shuffle(len(arrays[0]))
        .repeat()
        .batch(batch, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def gathered(
    arrays: tuple[Any, Any], batch: int, *, stack: int | None = None
) -> tf.data.Dataset:
    """Gathers a batch at once, by a seeded permutation of each epoch.

    Args:
        arrays: examples and labels.
        batch: how many examples.
        stack: how many batches an element holds, as its first dimension;
            `None` for a single one without that dimension.
    """
    with tf.device("CPU:0"):
        columns = [tf.constant(column) for column in arrays]

    def read(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        order = _order(number, len(arrays[0]), batch, stack)
        return tuple(tf.gather(column, order) for column in columns)

    return _ready(read)


def _order(
    number: tf.Tensor, count: int, batch: int, stack: int | None
) -> tf.Tensor:
    per_element = batch * (stack or 1)
    per_epoch = count // per_element
    seed = tf.stack([1, tf.cast(number // per_epoch, tf.uint32)])
    first = number % per_epoch * per_element
    order = tf.random.experimental.index_shuffle(
        first + tf.range(per_element, dtype=tf.int64),
        seed,
        tf.constant(count - 1, tf.int64),
    )
    return tf.reshape(order, [batch] if stack is None else [stack, batch])


def _ready(read: Callable[[tf.Tensor], tuple[tf.Tensor, ...]]) -> Any:
    return (
        tf.data.Dataset.counter()
        .map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )
