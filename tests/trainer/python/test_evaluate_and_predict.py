"""Callbacks of `evaluate`, `predict` and evaluations in `fit`, as in Keras."""

import keras
import numpy as np
import pytest

from trainer import Trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 4)).astype("float32")
Y = X[:, :1]


def net():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


class Events(keras.callbacks.Callback):
    """Notes the events of tests and predictions, and their losses."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def on_test_begin(self, logs=None):
        self.noted.append("test begin")

    def on_test_batch_begin(self, batch, logs=None):
        self.noted.append(("begin", batch))

    def on_test_batch_end(self, batch, logs=None):
        self.noted.append(("end", batch, round(logs["loss"], 4)))

    def on_test_end(self, logs=None):
        self.noted.append(("test end", round(logs["loss"], 4)))
        logs["added"] = 7

    def on_predict_begin(self, logs=None):
        self.noted.append("predict begin")

    def on_predict_batch_begin(self, batch, logs=None):
        self.noted.append(("begin", batch))

    def on_predict_batch_end(self, batch, logs=None):
        self.noted.append(("end", batch, logs["outputs"].shape))

    def on_predict_end(self, logs=None):
        self.noted.append("predict end")


@pytest.fixture(scope="module")
def pair():
    model = net()
    model.compile("sgd", "mse")
    return model, Trainer(net(), loss="mse", optimizer="sgd")


@pytest.mark.parametrize(
    "call",
    [
        lambda model, events: model.evaluate(
            X, Y, batch_size=4, verbose=0, return_dict=True, callbacks=[events]
        ),
        lambda model, events: model.predict(
            X, batch_size=4, verbose=0, callbacks=[events]
        ),
    ],
    ids=["evaluate", "predict"],
)
def test_events_are_those_of_keras(pair, call):
    noted = [Events(), Events()]
    found = [call(one, events) for one, events in zip(pair, noted, strict=True)]
    assert noted[0].noted == noted[1].noted
    assert len(noted[0].noted) == 8
    if isinstance(found[1], dict):
        assert found[1].pop("added") == 7
        found[0].pop("added", None)
        assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_evaluations_of_a_run_tell_their_batches():
    noted = [Events(), Events()]
    model = net()
    model.compile("sgd", "mse")
    fitted = [model, Trainer(net(), loss="mse", optimizer="sgd")]
    for one, events in zip(fitted, noted, strict=True):
        one.fit(
            X,
            Y,
            epochs=2,
            batch_size=5,
            shuffle=False,
            validation_data=(X, Y),
            callbacks=[events],
            verbose=0,
        )
    assert noted[0].noted == noted[1].noted
    assert len(noted[0].noted) == 2 * 6
