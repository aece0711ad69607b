"""A model that is given as an object, and what becomes of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def model(**options):
    made = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, activation="softmax")]
    )
    made.compile("sgd", "sparse_categorical_crossentropy", **options)
    return made


def mirrored():
    return tf.distribute.MirroredStrategy(["cpu:0"])


def make(given, strategy=None, **options):
    return Trainer(
        given,
        strategy=strategy or mirrored(),
        **{"batch_size": 16, **options},
    )


def fit(trainer, **options):
    return trainer.fit(X, Y, verbose=0, **options)


def test_averages_begin_with_the_given_weights():
    given = model()
    trainer = make(given, ema_momentum=0.99)
    expected = given(X)
    np.testing.assert_allclose(trainer.predict(X), expected, rtol=1e-5)


def test_an_optimizer_that_copies_weights_begins_with_the_given_ones():
    given = model()
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.01)
    parts = make(given, optimizer=optimizer, data=(X, Y)).parts
    kernel = given.get_weights()[0]
    copies = [
        value
        for value in map(np.asarray, parts.optimizers["optimizer"].variables)
        if value.shape == kernel.shape and value.any()
    ]
    assert len(copies) > 0
    for copy in copies:
        np.testing.assert_array_equal(copy, kernel)
