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
        found = tf.gather_nd(x, tf.where(x > 0))
        return x - tf.reduce_mean(found)

    def large(self, x):
        # A map of the whole batch against itself.
        wide = tf.tile(x, [1, 2**14])
        return x * tf.reduce_mean(tf.nn.softmax(wide @ tf.transpose(wide)))


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


@gin.configurable
def resnet50():
    return keras.applications.ResNet50(
        weights=None, classifier_activation=None, classes=1000
    )


@gin.configurable
def images(split, size=8):
    random = np.random.default_rng(0)
    pictures = random.random((size, 224, 224, 3), "float32")
    return pictures, random.integers(1000, size=size)


class Block(keras.layers.Layer):
    """Attention and two dense layers, each with a short cut."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads)
        self.first = keras.layers.Dense(4 * width, activation="relu")
        self.second = keras.layers.Dense(width)
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]

    def call(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.second(self.first(self.norms[1](x)))


LENGTH, WIDTH, HEADS, BLOCKS, WORDS = 256, 512, 8, 4, 1024


@gin.configurable
def transformer():
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, WIDTH),
            *(Block(WIDTH, HEADS) for _ in range(BLOCKS)),
            keras.layers.Dense(WORDS, dtype="float32"),
        ]
    )


@gin.configurable
def words(split, size=64):
    x = np.random.default_rng(0).integers(WORDS, size=(size, LENGTH))
    return x.astype("int32"), np.roll(x, -1, axis=1).astype("int32")
