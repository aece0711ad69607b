"""The user's module of the runs that are tried: small, and without faults."""

import gin
import keras
import numpy as np


@gin.configurable
def small_model():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    )


@gin.configurable
def small_data(split):
    x = np.random.default_rng(0).random((32, 4), "float32")
    return x, x.sum(axis=1, keepdims=True)
