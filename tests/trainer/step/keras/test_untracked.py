"""What a step leaves and no checkpoint holds is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import saved_steps
from tests.sets import one_in
from trainer import Trainer, UserError
from trainer_plugins import Checkpoint

X = np.ones((8, 2), "float32")
OUTSIDE = tf.Variable(1.0, name="outside")


class Counting(keras.layers.Dense):
    """Keeps a variable that Keras does not track."""

    def __init__(self):
        super().__init__(2, name="acting")
        self.seen = tf.Variable(0.0, trainable=False, name="seen")

    def call(self, x, training=None):
        self.seen.assign_add(1.0)
        return super().call(x)


class Drawing(keras.layers.Dense):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__(2, name="acting")
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x, training=None):
        return super().call(x) + self.generator.normal([2])


def train(layer, steps, folder=None):
    trainer = Trainer(
        model=lambda: keras.Sequential([keras.Input((2,)), layer()]),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(1e-3),
        data=lambda split: (X, X),
        batch_size=4,
        strategy="default",
    )
    saving = {"callbacks": [Checkpoint()], "model_dir": str(folder)}
    trainer.train(steps, **(saving if folder else {}))
    return trainer


def layer_that(act):
    class Acting(keras.layers.Dense):
        def call(self, x, training=None):
            return super().call(x) + act(x)

    return lambda: Acting(2, name="acting")


def random_in_a_condition(x):
    return tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.random.uniform([2]), lambda: x[0]
    )


REFUSED = {
    "of the layer": (Counting, "'acting' uses seen:0.* by add_weight"),
    "random": (
        layer_that(lambda x: tf.random.normal([2])),
        "'acting' draws .*StandardN",
    ),
    "in a condition": (
        layer_that(random_in_a_condition),
        "'acting' draws .*RandomUnif",
    ),
    "dropout": (
        layer_that(lambda x: tf.nn.dropout(x, 0.5)),
        "'acting' draws .* keras.ra",
    ),
    "outside": (
        layer_that(lambda x: OUTSIDE.assign_add(1.0)),
        "'acting' uses outside:0",
    ),
    "generator": (Drawing, "'acting' uses .* Keras does not track"),
}


@pytest.mark.parametrize("name", one_in(2, REFUSED))
def test_what_cannot_go_on_is_refused_where_it_would_have_to(
    name, tmp_path, caplog
):
    layer, message = REFUSED[name]
    with pytest.raises(UserError, match=f"The layer {message}"):
        train(layer, 1, tmp_path)
    assert not saved_steps(tmp_path)
    # Nothing is saved: it is worth a warning.
    trainer = train(layer, 1)
    assert trainer.step == 1
    assert "The layer 'acting' " in caplog.text
    with pytest.raises(UserError, match=f"The layer {message}"):
        trainer.train(2, model_dir=str(tmp_path), callbacks=[Checkpoint()])


def read_in_a_condition(x):
    return tf.cond(x[0, 0] > 0, lambda: OUTSIDE * x, lambda: x)


@pytest.mark.parametrize("act", [lambda x: OUTSIDE * x, read_in_a_condition])
def test_what_is_only_read_is_warned_of(act, tmp_path, caplog):
    train(layer_that(act), 1, tmp_path)
    assert "'acting' uses outside:0, which Keras does not tr" in caplog.text
    assert saved_steps(tmp_path)
