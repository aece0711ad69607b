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
        if what == "looked_up":
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant([0, 1], tf.int64), tf.constant([2, 3], tf.int64)
                ),
                default_value=0,
            )
        if what == "looked_up_in_keras":
            self.vocabulary = keras.layers.IntegerLookup(vocabulary=[0, 1])

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

    def printed(self, x):
        tf.print("the mean", tf.reduce_mean(x))
        return x

    def looked_up(self, x):
        return x + tf.cast(self.table.lookup(tf.cast(x, tf.int64)), x.dtype)

    def looked_up_in_keras(self, x):
        return x + tf.cast(self.vocabulary(tf.cast(x, tf.int64)), x.dtype)

    def unbounded(self, x):
        def halve(y):
            return (tf.tanh(y) / 2,)

        (y,) = tf.while_loop(
            lambda y: tf.reduce_max(tf.abs(y)) > 0.1, halve, (x,)
        )
        return x + y

    def double(self, x):
        return tf.cast(tf.sqrt(tf.cast(x, tf.float64) + 2), x.dtype)

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
            keras.layers.Dense(
                8, name="before", dtype="float64" if what == "float64" else None
            ),
            *(() if what == "float64" else (Odd(what, name="the_odd_one"),)),
            keras.layers.Dense(1, name="after"),
        ]
    )


@gin.configurable
def numbers(split, size=2048):
    x = np.random.default_rng(0).random((size, 8), "float32")
    return x, x.sum(axis=1, keepdims=True)


@gin.configurable
def generated(split):
    x, y = numbers(split, size=64)
    spec = (tf.TensorSpec((8,)), tf.TensorSpec((1,)))
    made = tf.data.Dataset.from_generator(
        lambda: zip(x, y, strict=True), output_signature=spec
    )
    return made.batch(16, drop_remainder=True)
