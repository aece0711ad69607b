"""Callbacks of Keras' kind in `Trainer.fit`, against `keras.Model.fit`."""

import logging
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import run_module
from trainer import Trainer
from trainer.loop.callback_list import CallbackList
from trainer_plugins import CentralStorage, Mirrored

RNG = np.random.default_rng(0)
X = RNG.normal(size=(42, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True) ** 2
# Ten batches of 4, and one of 2.
CALL = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


class OneCycle(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.number = 0

    def on_train_batch_begin(self, batch, logs=None):
        rate = 0.02 * math.sin(math.pi * self.number / 22)
        self.model.optimizer.learning_rate = rate
        self.number += 1


class StopsAt(keras.callbacks.Callback):
    """Stops where a value of a batch says so, through the old name."""

    def on_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 6 and logs["loss"] > 0


class Python(keras.callbacks.Callback):
    """Sets what only a trace sees."""

    def __init__(self, event):
        super().__init__()
        setattr(self, event, self.change)

    def change(self, number=None, logs=None):
        # Only the first one: Keras' graph is made once.
        if not number:
            self.model.optimizer.momentum = 0.5
            self.model.layers[0].rate = 3.0


class Times(keras.layers.Layer):
    rate = 1.0

    def call(self, x):
        return x * self.rate


class SavesEpochs(keras.callbacks.ModelCheckpoint):
    def __init__(self):
        super().__init__("unused.keras")


class Numbers(keras.callbacks.Callback):
    """Notes every event of a batch."""

    def __init__(self):
        super().__init__()
        self.seen = []


def noted(event):
    return lambda self, batch, logs=None: self.seen.append((event, batch))


for which in ("train", "test", "predict"):
    for end in ("begin", "end"):
        event = f"on_{which}_batch_{end}"
        setattr(Numbers, event, noted(event))


def made(**compiled):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), Times(), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    return model


def pair(given, *, strategy="default", compiled=(), fit=()):
    """Fits with Keras, and with a Trainer; returns both with callbacks."""
    theirs, ours = made(**dict(compiled)), made(**dict(compiled))
    callbacks = given(), given()
    call = CALL | dict(fit)
    theirs.fit(X, Y, **call, callbacks=[callbacks[0]])
    trainer = Trainer(ours, strategy=strategy)
    trainer.fit(X, Y, **call, callbacks=[callbacks[1]])
    for mine, other in zip(
        ours.get_weights(), theirs.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    return trainer, theirs, callbacks


CASES = {
    "one cycle": OneCycle,
    "stop": StopsAt,
    "lambda": lambda: keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: None
    ),
    "on_train_begin": lambda: Python("on_train_begin"),
    "on_epoch_begin": lambda: Python("on_epoch_begin"),
    "on_train_batch_begin": lambda: Python("on_train_batch_begin"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_callback_acts_on_every_step(name):
    trainer, theirs, _ = pair(CASES[name])
    assert trainer.step == int(theirs.optimizer.iterations)


def test_what_a_call_says_of_steps_per_loop(caplog):
    trainer = Trainer(made(), strategy="default", data=(X, Y), batch_size=4)
    logs = logging.getLogger("absl")
    logs.setLevel(logging.INFO)
    numbers = Numbers()
    with caplog.at_level(logging.INFO):
        trainer.train(5, callbacks=[numbers], verbose=0)
    logs.setLevel(logging.WARNING)
    assert (
        caplog.text.count(
            "Numbers acts on batches: it is called once for steps_per_loop = 1"
        )
        == 1
    )
    assert [one[1] for one in numbers.seen[::2]] == [0, 1, 2, 3, 4]
    trainer.fit(
        X, Y, steps_per_loop=4, shuffle=False, callbacks=[numbers], verbose=0
    )
    assert [one[1] for one in numbers.seen[11::2]] == [2, 6, 10]
    assert caplog.text.count("once for steps_per_loop = 4") == 1
    # What acts on epochs only is no reason for short loops.
    quick = [keras.callbacks.TensorBoard("unused"), SavesEpochs()]
    built = trainer._new_run()
    assert CallbackList(quick, built).steps_per_loop(None) == 100
    often = keras.callbacks.TensorBoard("unused", update_freq=10)
    assert CallbackList([often], built).steps_per_loop(None) == 1


@pytest.mark.parametrize("execution", [1, 3])
def test_events_of_batches_are_those_of_keras(execution):
    trainer, theirs, callbacks = pair(
        Numbers,
        compiled={"steps_per_execution": execution},
        fit={"validation_data": (X[:10], Y[:10])},
    )
    for model in (theirs, trainer):
        number = 1 if model is trainer else 0
        model.evaluate(
            X, Y, batch_size=4, callbacks=[callbacks[number]], verbose=0
        )
        model.predict(X, batch_size=4, callbacks=[callbacks[number]], verbose=0)
    assert callbacks[1].seen == callbacks[0].seen


@pytest.mark.long
def test_under_every_strategy(root):
    run_module("tests.trainer.python.test_keras_callbacks_in_fit", root=root)


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(cpu, parts)
    devices = ["CPU:0", "CPU:1", "CPU:2"]
    for kind in (Mirrored, CentralStorage):
        for given in CASES.values():
            pair(given, strategy=kind(devices=devices))
