"""Shuffled, endless batches of arrays in `tf.data`, in two ways."""

import math
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

    shape = [batch] if stack is None else [stack, batch]
    per_element = math.prod(shape)
    per_epoch = len(arrays[0]) // per_element

    def read(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        seed = tf.stack([1, tf.cast(number // per_epoch, tf.uint32)])
        first = number % per_epoch * per_element
        order = tf.random.experimental.index_shuffle(
            first + tf.range(per_element, dtype=tf.int64),
            seed,
            tf.constant(len(arrays[0]) - 1, tf.int64),
        )
        order = tf.reshape(order, shape)
        return tuple(tf.gather(column, order) for column in columns)

    return (
        tf.data.Dataset.counter()
        .map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )
