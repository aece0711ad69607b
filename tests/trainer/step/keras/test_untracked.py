"""Whatever a step touches goes on in a resumed run, or is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import as_numpy, newest, saved_steps
from tests.sets import one_in
from trainer import Trainer, UserError
from trainer_plugins import Checkpoint

X = np.ones((8, 2), "float32")
OUTSIDE = tf.Variable(1.0, name="outside")


def hide(owner, name, value):
    """Keeps an attribute from Keras, which tracks what is set as usual."""
    object.__setattr__(owner, name, value)


class Touching(keras.layers.Layer):
    """Keeps state in every way that Keras does not know of."""

    def __init__(self):
        super().__init__(name="touching")
        self.plain = tf.Variable(0.0)
        self.generator = tf.random.Generator.from_seed(3)
        hide(self, "hidden", keras.Variable(1.0))
        hide(self, "seeds", keras.random.SeedGenerator(5))
        counter = tf.Variable([0, 0])
        hide(self, "count", lambda: counter.assign_add([1, 2]))

    def build(self, shape):
        self.scale = self.add_weight(shape=())
        self.seen = self.add_weight(shape=(3, 2), trainable=False)

    def call(self, x, training=None):
        if training:
            self.plain.assign_add(1.0)
            self.hidden.assign(self.hidden * 2.0)
        drawn = [
            self.generator.normal([2]),
            keras.random.normal([2], seed=self.seeds),
            keras.random.normal([2]),
        ]
        self.seen.assign(tf.stack(drawn))
        count = tf.cast(tf.reduce_sum(self.count()), tf.float32)
        return self.scale * (x + self.plain * self.hidden + count + sum(drawn))


class WithOwn(Trainer):
    """A Trainer with an attribute that its step changes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.steps_seen = tf.Variable(0.0)

    def per_example_loss(self, x, y, y_pred):
        self.steps_seen.assign_add(1.0)
        return tf.reduce_mean((y_pred - y) ** 2, 1) * self.steps_seen


class Bump(keras.callbacks.Callback):
    """Changes what Keras does not track, once an epoch of two steps."""

    def on_epoch_begin(self, epoch, logs=None):
        plain = getattr(self.model.layers[0], "plain", None)
        if plain is not None:
            plain.assign_add(10.0)


def train(layer, steps, folder=None, kind=Trainer):
    trainer = kind(
        model=lambda: keras.Sequential([keras.Input((2,)), layer()]),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(1e-3),
        data=lambda split: (X, X),
        batch_size=4,
        strategy="default",
    )
    saving = {"callbacks": [Bump(), Checkpoint()], "model_dir": str(folder)}
    trainer.train(steps, **(saving if folder else {}))
    return trainer


def test_what_keras_does_not_track_goes_on(tmp_path):
    whole = train(Touching, 6, tmp_path / "whole", WithOwn)
    train(Touching, 3, tmp_path / "parts", WithOwn)
    parts = train(Touching, 6, tmp_path / "parts", WithOwn)
    for trainer in (whole, parts):
        (layer,) = trainer.model.layers
        assert layer.plain.numpy() == 6.0 + 3 * 10.0
        assert trainer.steps_seen.numpy() == 6.0
        assert layer.hidden.numpy() == 64.0
    found, expected = (
        {name: one.tobytes() for name, one in as_numpy(newest(folder)).items()}
        for folder in (tmp_path / "parts", tmp_path / "whole")
    )
    assert found == expected
    # All three kinds of draws are new in each step.
    seen = whole.model.layers[0].seen.numpy()
    other = train(Touching, 5, None, WithOwn).model.layers[0].seen.numpy()
    assert (seen != other).any(axis=1).all()


def test_what_keras_tracks_is_held_once(tmp_path):
    train(lambda: keras.layers.Dense(2, name="dense"), 2, tmp_path)
    names = as_numpy(newest(tmp_path))
    assert names
    assert not [n for n in names if n.startswith("untracked")]


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
    "random": (lambda x: tf.random.normal([2]), "'acting' draws .*StandardN"),
    "in a condition": (random_in_a_condition, "'acting' draws .*RandomUnif"),
    "dropout": (lambda x: tf.nn.dropout(x, 0.5), "'acting' draws .* keras.ra"),
    "outside": (lambda x: OUTSIDE.assign_add(1.0), "'acting' uses outside:0"),
}


@pytest.mark.parametrize("name", one_in(2, REFUSED))
def test_what_cannot_go_on_is_refused_where_it_would_have_to(
    name, tmp_path, caplog
):
    act, message = REFUSED[name]
    with pytest.raises(UserError, match=f"The layer {message}"):
        train(layer_that(act), 1, tmp_path)
    assert not saved_steps(tmp_path)
    # Nothing is saved: it is worth a warning.
    trainer = train(layer_that(act), 1)
    assert trainer.step == 1
    assert "The layer 'acting' " in caplog.text
    with pytest.raises(UserError, match=f"The layer {message}"):
        trainer.train(2, model_dir=str(tmp_path), callbacks=[Checkpoint()])


def read_in_a_condition(x):
    return tf.cond(x[0, 0] > 0, lambda: OUTSIDE * x, lambda: x)


@pytest.mark.parametrize("act", [lambda x: OUTSIDE * x, read_in_a_condition])
def test_what_is_only_read_is_warned_of(act, tmp_path, caplog):
    train(layer_that(act), 1, tmp_path)
    assert "'acting' uses outside:0, which was made outside" in caplog.text
    assert saved_steps(tmp_path)
