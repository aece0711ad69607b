"""Models that no TPU can run, and one that is too large for it."""

import gin
import keras
import numpy as np
import tensorflow as tf


@keras.saving.register_keras_serializable("tests")
class Odd(keras.layers.Layer):
    """Does something that only a CPU can do."""

    def __init__(self, what, **kwargs):
        super().__init__(**kwargs)
        self.what = what

    def call(self, x):
        return getattr(self, self.what)(x)

    def python(self, x):
        halved = tf.py_function(lambda a: a / 2, [x], x.dtype)
        return tf.ensure_shape(halved, x.shape)

    def text(self, x):
        text = tf.strings.as_string(x[:, 0])
        return x * tf.cast(tf.strings.length(text)[:, None], x.dtype)

    def positive(self, x):
        rows = tf.where(x > 0)[:, 0]
        return (
            x
            + tf.math.unsorted_segment_sum(
                tf.ones_like(rows, x.dtype), rows, tf.shape(x)[0]
            )[:, tf.newaxis]
        )

    def large(self, x):
        # A map of each example against itself.
        tall = tf.tile(x[:, tf.newaxis], [1, 2**10, 1])
        pairs = tf.matmul(tall, tall, transpose_b=True)
        return x * tf.reduce_mean(tf.nn.softmax(pairs), axis=[1, 2])[:, None]


@gin.configurable
def odd_model(what):
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, name="before"),
            Odd(what, name="the_odd_one"),
            keras.layers.Dense(1, name="after"),
        ]
    )


@gin.configurable
def numbers(split, size=2048):
    x = np.random.default_rng(0).random((size, 8), "float32")
    return x, x.sum(axis=1, keepdims=True)
