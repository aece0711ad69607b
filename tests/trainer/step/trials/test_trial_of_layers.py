"""Which layers are tried before the first step, and what is found."""

import keras
import pytest
import tensorflow as tf

from tests.helpers import make_trainer
from tests.sets import one_in
from trainer import UserError
from trainer.step.trials import trial


class Adding(keras.layers.Layer):
    def __init__(self, added, **options):
        super().__init__(**options)
        self.added = added

    def call(self, x, training=False):
        self.add_loss(self.added(x, training))
        return x


def model_of(*layers):
    return lambda: keras.Sequential(
        [keras.Input((3,)), *[make() for make in layers], keras.layers.Dense(1)]
    )


def adding(added, *before):
    return model_of(*before, lambda: Adding(added, name="adding"))


def variance(x, training):
    return tf.reduce_mean(tf.math.reduce_variance(x, 0))


def total(x, training):
    return tf.reduce_sum(x**2)


def noisy_total(x, training):
    if training:
        x = x * tf.random.normal(tf.shape(x))
    return tf.reduce_sum(x**2)


class Own(keras.regularizers.Regularizer):
    """Keras divides it by the batch once more."""

    def __call__(self, x):
        return tf.reduce_mean(x**2)


REFUSED = {
    "sum": (adding(total), "a sum over the batch .* = {'adding': 'sum'}"),
    "variance": (
        adding(variance),
        "something that is not a mean over the batch",
    ),
    "noise": (adding(noisy_total), "a sum over the batch"),
    "normalized": (
        adding(total, keras.layers.BatchNormalization),
        "a sum over the batch",
    ),
    "regularizer": (
        model_of(lambda: keras.layers.Dense(3, activity_regularizer=Own())),
        "something that is not a mean over the batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mean_is_refused(name):
    model, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence):
        make_trainer(model, accumulation_steps=2).train(1)


@pytest.mark.parametrize(
    ("model", "options"),
    one_in(
        2,
        [
            (adding(lambda x, _: tf.reduce_mean(x**2)), {}),
            (adding(total), {"added_losses": "sum"}),
            (adding(total), {"added_losses": {"adding": "mean"}}),
        ],
    ),
    ids=["a mean", "said of all", "said of one"],
)
def test_what_is_a_mean_or_decided_trains(model, options):
    make_trainer(model, accumulation_steps=2, **options).train(1)


def test_nothing_is_tried_without_need(monkeypatch):
    """Neither layers and losses of Keras, nor a batch in one piece."""

    def fail(*_, **__):
        raise AssertionError("a trial was made")

    monkeypatch.setattr(trial.Trial, "__init__", fail)
    known = model_of(
        lambda: keras.layers.Dense(3, activity_regularizer="l2"),
        lambda: keras.layers.Lambda(lambda x: 2 * x),
    )
    make_trainer(known, accumulation_steps=2).train(1)
    make_trainer(adding(total), loss=lambda y, p: (y - p) ** 2).train(1)


def test_what_is_said_of_added_losses_is_checked():
    with pytest.raises(UserError, match="'total' must be 'mean', 'sum'"):
        make_trainer(adding(total), added_losses="total").build()
    with pytest.raises(
        UserError, match="'addin', which is not a layer.*'adding'"
    ):
        make_trainer(adding(total), added_losses={"addin": "sum"}).build()
