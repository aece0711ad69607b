"""Layers that mix examples: named, with what helps, wherever a batch is cut."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.probe.models import BATCH, X, Y, dense, own
from tests.sets import one_in, ordinary
from trainer import ArrayExamples, Trainer, UserError

NUMBERS = np.random.default_rng(1).integers(0, 9, (len(X), 2)).astype("int32")


def deviation(x):
    """A feature that is the spread of the batch, as in progressive GANs."""
    spread = ops.mean(ops.std(x, axis=0))
    return ops.concatenate([x, spread * ops.ones_like(x[:, :1])], -1)


class Recommender(keras.Model):
    """That of keras.io, which multiplies over the whole batch."""

    def __init__(self):
        super().__init__(name="recommender")
        self.user, self.item = layers.Embedding(9, 4), layers.Embedding(9, 4)
        self.user_bias = layers.Embedding(9, 1)
        self.item_bias = layers.Embedding(9, 1)

    def call(self, inputs):
        user, item = inputs[:, 0], inputs[:, 1]
        together = ops.tensordot(self.user(user), self.item(item), 2)
        return ops.sigmoid(
            together + self.user_bias(user) + self.item_bias(item)
        )


def mixing(function):
    def call(layer, x, training):
        return function(x)

    return own(call)


def sequential(layer):
    return keras.Sequential([keras.Input((6,)), dense(4)(), layer, dense(1)()])


CASES = {
    "centred": mixing(lambda x: x - ops.mean(x, 0)),
    "deviation": mixing(deviation),
    "softmax": mixing(lambda x: ops.softmax(x, 0)),
    "softmax_layer": lambda name: layers.Softmax(axis=0, name=name),
    "unit_norm": lambda name: layers.UnitNormalization(axis=0, name=name),
    "attention": mixing(lambda x: ops.softmax(x @ ops.transpose(x)) @ x),
    "mixup": mixing(lambda x: 0.8 * x + 0.2 * ops.roll(x, 1, axis=0)),
    "largest": mixing(lambda x: x / ops.max(ops.abs(x))),
}


def model(name):
    keras.utils.set_random_seed(3)
    if name == "recommender":
        return Recommender()
    return sequential(CASES[name](name=name))


def trainer(name, **options):
    x = NUMBERS if name == "recommender" else X
    return Trainer(
        model=lambda: model(name),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.05),
        data=lambda split: ArrayExamples((x, Y), shuffle=False),
        batch_size=BATCH,
        **options,
    )


# The probe knows none of them by its kind.
NAMES = [*CASES, "recommender"]


@pytest.mark.parametrize(
    ("name", "form"),
    ordinary(
        itertools.product(NAMES, ("graph", "xla")),
        [*((name, "graph") for name in NAMES[::2]), ("largest", "xla")],
    ),
)
def test_is_refused_by_name_and_says_what_helps(name, form):
    cut = trainer(name, accumulation_steps=2, jit_compile=form)
    with pytest.raises(UserError) as raised:
        cut.train(1, verbose=0)
    said = str(raised.value)
    assert f"In the layer {name!r}" in said
    assert "depends on the other examples of its batch" in said
    assert "all_gather" in said
    assert "one replica" in said


@pytest.mark.parametrize("name", one_in(4, NAMES))
def test_a_whole_batch_trains_as_in_fit(name):
    whole = trainer(name, strategy="default")
    whole.train(3, verbose=0)
    x = NUMBERS if name == "recommender" else X
    plain = model(name)
    plain.compile(keras.optimizers.SGD(0.05), "mse")
    plain.fit(x, Y, batch_size=BATCH, shuffle=False, verbose=0)
    pairs = zip(whole.model.get_weights(), plain.get_weights(), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (lambda: layers.SpectralNormalization(layers.Dense(1)), "vector_u"),
        (layers.BatchNormalization, "moving_mean"),
        (lambda: layers.Dropout(0.1), None),
    ],
)
def test_what_each_micro_batch_assigns_to_is_named(made, names, caplog):
    model = keras.Sequential([keras.Input((4,)), made(), layers.Dense(1)])
    x = np.ones((8, 4), "float32")
    data = ArrayExamples((x, x[:, :1]))
    options = {"data": data, "batch_size": 8, "strategy": "default"}
    Trainer(model, loss="mse", accumulation_steps=2, **options).train(1)
    said = "accumulation_steps = 2 once for each micro-batch" in caplog.text
    assert said == (names is not None)
    assert not names or names in caplog.text
