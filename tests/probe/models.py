"""Small models, and the data that they are tried on."""

import keras
import numpy as np
from keras import layers

from trainer import ArrayExamples, Trainer

RNG = np.random.default_rng(7)
ROWS, BATCH = 35, 16
X = RNG.normal(size=(ROWS, 6)).astype("float32")
Y = (np.sin(X.sum(1, keepdims=True)) + 0.1 * X[:, :1]).astype("float32")
CLASSES = RNG.integers(0, 3, ROWS).astype("int32")
IMAGES = RNG.uniform(size=(ROWS, 8, 8, 3)).astype("float32")
TIMES = RNG.normal(size=(ROWS, 6, 4)).astype("float32")
TOKENS = RNG.integers(0, 11, (ROWS, 5)).astype("int32")
WEIGHTS = RNG.uniform(0.2, 2.0, ROWS).astype("float32")


def dense(units, activation=None, **options):
    return lambda: layers.Dense(units, activation, **options)


def own(call, build=None):
    """A layer of functions of itself, and of inputs or their shape."""

    class Own(layers.Layer):
        def build(self, shape):
            if build is not None:
                build(self, shape)
            super().build(shape)

        def call(self, x, training=False):
            return call(self, x, training)

    return Own


def case(*made, data=(X, Y), model=None, kind=Trainer, **options):
    """What makes a Trainer of some layers, for a strategy."""

    def sequential():
        x = data[0]
        inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
        return keras.Sequential([inputs, *(one() for one in made)])

    def trainer(**more):
        keras.utils.set_random_seed(3)
        given = {"loss": "mse", "batch_size": BATCH} | options | more
        return kind(
            model or sequential,
            optimizer=lambda: keras.optimizers.SGD(0.01),
            data=lambda split: ArrayExamples(data, shuffle=False),
            jit_compile=False,
            **given,
        )

    return trainer
