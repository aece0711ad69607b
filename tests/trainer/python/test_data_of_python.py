"""Generators and other data without a length, against `keras.Model.fit`."""

import types

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from trainer import Trainer, UserError

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
RAGGED = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]] * 5)
SIGNATURE = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))


def batches(count=None, kind=np.asarray):
    number = 0
    while count is None or number < count:
        rows = slice(number % 5 * 8, number % 5 * 8 + 8)
        yield kind(X[rows]), Y[rows]
        number += 1


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __init__(self, kind=np.asarray):
        super().__init__()
        self._kind = kind

    def __getitem__(self, number):
        rows = slice(number % 5 * 8, number % 5 * 8 + 8)
        return self._kind(X[rows]), Y[rows]


def linear():
    return [keras.Input((4,)), keras.layers.Dense(1)]


class OfSparse(keras.layers.Layer):
    """Takes nothing but sparse tensors."""

    def call(self, x):
        return tf.sparse.sparse_dense_matmul(x, tf.ones((4, 3)))


def sums_of_sparse():
    inputs = keras.Input((4,), sparse=True)
    return keras.Model(inputs, keras.layers.Dense(1)(OfSparse()(inputs)))


class Chosen(keras.layers.Layer):
    def call(self, x, other):
        return x if other is None else other


def optional():
    inputs = [
        keras.Input((4,), name="x"),
        keras.Input((4,), name="o", optional=True),
    ]
    made = keras.layers.Dense(1)(Chosen()(*inputs))
    return keras.Model({one.name: one for one in inputs}, made)


def words():
    return [
        keras.layers.Embedding(9, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]


def sums():
    """Nothing that is trained, over rows of different lengths."""
    return [
        keras.Input((None,), ragged=True),
        keras.layers.Lambda(
            lambda x: tf.reduce_sum(tf.cast(x, tf.float32), 1)[:, None]
        ),
    ]


COUNTED = (
    *("one pass", "sparse", "scipy", "validation"),
    "batches without an optional input",
)
# What makes the layers, and the arguments of `fit`, anew for each call.
CASES = {
    "one pass": (linear, lambda: {"x": batches(5)}),
    "endless": (
        linear,
        # More than are kept.
        lambda: {"x": batches(), "steps_per_epoch": 130, "epochs": 3},
    ),
    "sparse": (
        linear,
        lambda: {"x": batches(5, tf.sparse.from_dense)},
    ),
    "scipy": (
        sums_of_sparse,
        lambda: {"x": batches(5, scipy.sparse.csr_matrix)},
    ),
    "sparse py_dataset": (
        sums_of_sparse,
        lambda: {"x": Endless(tf.sparse.from_dense), "steps_per_epoch": 7},
    ),
    "without an optional input": (
        optional,
        lambda: {"x": {"x": X, "o": None}, "y": Y, "batch_size": 8},
    ),
    "batches without an optional input": (
        optional,
        lambda: {"x": batches(5, lambda x: {"x": x, "o": None})},
    ),
    "validation": (
        linear,
        lambda: {
            "x": X,
            "y": Y,
            "batch_size": 8,
            "validation_data": batches(),
            "validation_steps": 4,
        },
    ),
    "py_dataset": (
        linear,
        lambda: {"x": Endless(), "steps_per_epoch": 7, "epochs": 2},
    ),
    "from_generator": (
        linear,
        lambda: {
            "x": tf.data.Dataset.from_generator(
                batches, output_signature=SIGNATURE
            ),
            "steps_per_epoch": 7,
            "epochs": 2,
        },
    ),
    "more steps than arrays have": (
        linear,
        lambda: {
            "x": X,
            "y": Y,
            "batch_size": 8,
            "steps_per_epoch": 9,
            "epochs": 2,
        },
    ),
    "ragged input": (
        sums,
        lambda: {"x": RAGGED, "y": np.ones((20, 1)), "batch_size": 4},
    ),
    "ragged": (
        words,
        lambda: {"x": RAGGED, "y": np.ones((20, 1)), "batch_size": 4},
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_fit_is_that_of_keras(name, caplog):
    layers, call = CASES[name]
    found = []
    for as_trainer in (False, True):
        keras.utils.set_random_seed(3)
        made = layers()
        model = keras.Sequential(made) if isinstance(made, list) else made
        model.compile("sgd", "mse", metrics=["mae"])
        fits = Trainer(model, strategy="default") if as_trainer else model
        history = fits.fit(**call(), shuffle=False, verbose=0).history
        found.append((history, model.get_weights()))
    (theirs, expected), (ours, weights) = found
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-5)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    # An endless source is not read to be counted.
    assert ("to count" in caplog.text) == (name in COUNTED)
    said = caplog.text.count("is a generator: a resumed run starts it again")
    assert said == (name in (*COUNTED, "endless"))


def test_what_a_generator_cannot_do():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(linear())
    model.compile("sgd", "mse")
    trainer = Trainer(model, strategy="default")
    with pytest.raises(UserError, match="The train data yields no batches"):
        trainer.fit(batches(0), verbose=0)
    with pytest.raises(UserError, match="pass steps_per_epoch"):
        trainer.fit(batches(), verbose=0)
    with pytest.raises(UserError, match="has ended, or cannot go back to its"):
        trainer.fit(batches(250), steps_per_epoch=300, verbose=0)


def test_examples_of_a_generator_are_counted_by_the_targets():
    table = np.random.default_rng(1).normal(size=(3, 4)).astype("float32")

    def model():
        keras.utils.set_random_seed(1)
        inputs = [keras.Input(batch_shape=(3, 4)), keras.Input((4,))]
        near = keras.ops.matmul(inputs[1], keras.ops.transpose(inputs[0]))
        made = keras.Model(inputs, keras.layers.Dense(1)(near))
        made.compile("sgd", "mse")
        return made

    def pairs():
        return (((table, x), y) for x, y in batches(5))

    expected, found = model(), model()
    expected.fit(pairs(), verbose=0)
    trainer = Trainer(found, strategy="default")
    trainer.fit(pairs(), verbose=0)
    assert trainer.batch_size == 8
    for one, other in zip(
        expected.get_weights(), found.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)
    again = Trainer(model(), strategy="default", accumulation_steps=2)
    with pytest.raises(
        UserError, match=r"x\[0\] does not have one row for each"
    ):
        again.fit(pairs(), verbose=0)


def test_what_no_tensor_can_hold_is_refused_before_the_first_step():
    trainer = Trainer(keras.Sequential(linear()), loss="mse")
    with pytest.raises(UserError, match="A batch holds a SimpleNamespace"):
        trainer.fit(batches(5, lambda x: types.SimpleNamespace(x=x)), verbose=0)
