"""Models that are built by the data of a call."""

import keras
import numpy as np
import pytest

from trainer import Trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = X[:, :2]


def unbuilt():
    return keras.Sequential([keras.layers.Dense(2)])


def make(data=None, batch_size=16):
    return Trainer(
        unbuilt,
        loss="mse",
        data=data,
        strategy="default",
        batch_size=batch_size,
    )


def evaluate_own_split():
    trainer = make({"eval": (X, Y)})
    trainer.evaluate()
    return trainer


def evaluate_arrays():
    trainer = make()
    trainer.evaluate(X, Y)
    return trainer


def predict_arrays():
    trainer = make()
    trainer.predict(X)
    return trainer


def build_for_a_split():
    trainer = make({"eval": (X, Y)})
    trainer.build()
    return trainer


@pytest.mark.parametrize(
    "call",
    [evaluate_own_split, evaluate_arrays, predict_arrays, build_for_a_split],
)
def test_the_data_that_is_there_builds_the_model(call, tmp_path):
    trainer = call()
    assert trainer.model.layers[0].kernel.shape == (4, 2)
    # A copy is built by what is remembered.
    copy = trainer._built.single_device_model()
    np.testing.assert_array_equal(
        copy.get_weights()[0], trainer.model.get_weights()[0]
    )
