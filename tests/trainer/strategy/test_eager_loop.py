"""`run_eagerly`: the same numbers as Python, where a debugger can stop."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import linear, make_trainer
from trainer import Guard, Trainer, UserError, average


def net():
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )


class OwnStep(Trainer):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            error = tf.reduce_sum(tf.square(self.forward(x, training=True) - y))
            loss = average(error, tf.shape(x)[0])
        variables = self.model.trainable_variables
        self.apply_gradients(self.gradients(tape, loss, variables), variables)
        return {"loss": loss}


class Branches(Trainer):
    """AutoGraph has to convert this, and Python does not."""

    def per_example_loss(self, x, y, y_pred):
        error = tf.square(y - y_pred)[:, 0]
        if tf.reduce_mean(error) > 0.5:
            error = error * 2.0
        return error


CASES = {
    "layers": {},
    "micro-batches": {"accumulation_steps": 2},
    "a guard": {"guard": Guard(max_gradient_norm=1e6)},
    "averages": {"ema_momentum": 0.9},
    "float16": {"precision": "mixed_float16"},
    "an own step": {"kind": OwnStep},
    "a condition": {"kind": Branches},
    "one_device": {"strategy": "one_device"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_the_graph(name):
    options = CASES[name]
    found, weights = [], []
    for eager in (True, False):
        trainer = make_trainer(
            net, run_eagerly=eager, jit_compile=False, **options
        )
        values = trainer.train_and_evaluate(5, verbose=0)
        found.append(values)
        weights.append(trainer.model.get_weights())
    assert found[0].keys() == found[1].keys()
    # A graph's fused operations round float16 elsewhere, and Adam's first steps
    # are as large for a small gradient as for a large one.
    error = 2e-2 if name == "float16" else 1e-5
    for key in ("loss", "val_loss"):
        assert found[0][key] == pytest.approx(found[1][key], rel=10 * error)
    for own, its in zip(*weights, strict=True):
        np.testing.assert_allclose(own, its, rtol=error, atol=error)


def test_a_breakpoint_sees_values(monkeypatch):
    seen = []

    def stop(*, header=None):
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_filename, frame.f_locals["error"].numpy()))

    class Stops(Trainer):
        def per_example_loss(self, x, y, y_pred):
            error = tf.square(y - y_pred)[:, 0]
            breakpoint()
            return error

    monkeypatch.setattr(sys, "breakpointhook", stop)
    trainer = make_trainer(linear, kind=Stops, run_eagerly=True)
    trainer.build()
    trainer.train(2, verbose=0)
    values = [one for path, one in seen if path == __file__]
    # In the user's own file, with numbers, in each step.
    assert [v.shape for v in values] == [(8,), (8,)]
    assert not tf.config.functions_run_eagerly()


def test_where_it_cannot_be():
    with pytest.raises(UserError, match="'mirrored' are threads"):
        make_trainer(linear, run_eagerly=True, strategy="mirrored").build()
    with pytest.raises(UserError, match="jit_compile = True compiles"):
        make_trainer(linear, run_eagerly=True, jit_compile=True)
