"""Research code may have `if` and `for` over tensors, wherever it is called."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Trainer
from trainer.plugin_api import graph_function, repeat
from trainer.runtime.graph import converted, only_if

X = np.arange(-4.0, 4.0, dtype=np.float32).reshape(8, 1)
Y = np.ones((8, 1), np.float32)


class Hinge(keras.losses.Loss):
    """Has a condition over a tensor."""

    def call(self, y_true, y_pred):
        error = tf.abs(y_true - y_pred)
        if tf.reduce_max(error) > 2.0:
            error = error * 2.0
        return tf.squeeze(error, -1)


class Forms(Trainer):
    """Has conditions and loops over tensors in what it overrides."""

    def forward(self, x, *, training):
        y = self.model(x, training=training)
        for _ in tf.range(2):
            y = y * 2.0
        return y

    def per_example_loss(self, x, y, y_pred):
        error = tf.squeeze(tf.square(y - y_pred), -1)
        if tf.reduce_sum(error) > 1.0:
            error = error / 4.0
        return error

    def apply_gradients(self, gradients):
        total = tf.constant(0.0)
        for i in tf.range(2):
            if i > 0:
                total += 1.0
        super().apply_gradients({k: g * total for k, g in gradients.items()})


class OwnStep(Trainer):
    """Calls what the package has from a step of its own."""

    def train_step(self, batch):
        logs = super().train_step(batch)
        if self.parts.step.read_value() > 0:
            later = tf.constant(1.0)
        else:
            later = tf.constant(0.0)
        return {**logs, "later": later}


def make(kind, **arguments):
    def model():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        return keras.Sequential([keras.Input((1,)), dense])

    return kind(
        model=model,
        optimizer=lambda: keras.optimizers.SGD(0.01),
        data=lambda split: (X, Y),
        batch_size=8,
        strategy="default",
        **arguments,
    )


def test_methods_of_a_trainer():
    trainer = make(Forms)
    logs = trainer.train(1)
    # The prediction is four times the output.
    error = 4 * X - Y
    assert logs["loss"] == pytest.approx(np.mean(error**2) / 4, rel=1e-6)
    gradient = np.mean(2 * error * 4 * X) / 4
    kernel = trainer.model.layers[0].kernel.numpy()
    np.testing.assert_allclose(kernel, [[1 - 0.01 * gradient]], rtol=1e-5)


def test_a_loss_of_ones_own():
    logs = make(Trainer, loss=Hinge()).train(1)
    assert logs["loss"] == pytest.approx(2 * np.mean(np.abs(X - Y)), rel=1e-6)


def test_a_step_of_ones_own():
    logs = make(OwnStep, loss="mse").train(4)
    assert logs["later"] == pytest.approx(0.75)


def test_code_of_keras_and_of_the_package_is_left_alone():
    assert converted(repeat) is repeat
    loss = keras.losses.MeanSquaredError()
    assert converted(loss.call) == loss.call
    assert converted(loss) is loss
    assert converted(Hinge().call) != Hinge().call


def test_a_graph_repeats_and_decides():
    noted = tf.Variable(0)

    @graph_function
    def add_up(count):
        total = repeat(
            lambda number, total: {"sum": total["sum"] + number},
            {"sum": tf.constant(0)},
            start=1,
            stop=count,
        )["sum"]
        only_if(total > 5, lambda: noted.assign(1), lambda: noted.assign(2))
        only_if(total > 100, lambda: noted.assign(3))
        return total

    assert [int(add_up(tf.constant(n))) for n in (0, 1, 5)] == [0, 0, 10]
    assert int(noted) == 1
    add_up(tf.constant(2))
    assert int(noted) == 2
    assert add_up.experimental_get_tracing_count() == 1


def test_tensorflow_does_not_count_the_traces_of_many_trainers(caplog):
    class Loop:
        def __init__(self):
            self.step = graph_function(self.steps)

        def steps(self, x):
            return x + 1

    # One function to TensorFlow, as what names it is file and line.
    for _ in range(8):
        Loop().step(tf.constant(1))
    assert "triggered tf.function retracing" not in caplog.text
