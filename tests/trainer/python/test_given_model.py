"""A model that is given as an object, and what becomes of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Trainer, UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def model(**options):
    made = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, activation="softmax")]
    )
    made.compile("sgd", "sparse_categorical_crossentropy", **options)
    return made


def mirrored():
    return tf.distribute.MirroredStrategy(["cpu:0"])


def make(given, strategy=None, **options):
    return Trainer(
        given,
        strategy=strategy or mirrored(),
        **{"batch_size": 16, **options},
    )


def fit(trainer, **options):
    return trainer.fit(X, Y, verbose=0, **options)


def test_averages_begin_with_the_given_weights():
    given = model()
    trainer = make(given, ema_momentum=0.99)
    expected = given(X)
    np.testing.assert_allclose(trainer.predict(X), expected, rtol=1e-5)


def test_an_optimizer_that_copies_weights_begins_with_the_given_ones():
    given = model()
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.01)
    parts = make(given, optimizer=optimizer, data=(X, Y))._built.parts
    kernel = given.get_weights()[0]
    copies = [
        value
        for value in map(np.asarray, parts.optimizers["optimizer"].variables)
        if value.shape == kernel.shape and value.any()
    ]
    assert len(copies) > 0
    for copy in copies:
        np.testing.assert_array_equal(copy, kernel)


class Scaled(keras.layers.Layer):
    """As a notebook has it: not registered with Keras."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale


class NoArguments(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


FACTOR = 2.0


def functional():
    inputs = keras.Input((4,))
    nested = keras.Sequential([Scaled(), keras.layers.Dense(3)])
    doubled = keras.layers.Lambda(lambda x: FACTOR * x)(nested(inputs))
    made = keras.Model(inputs, keras.layers.Dense(2)(doubled))
    # Neither Keras nor a copy could read this back.
    made.compile("sgd", lambda y, y_pred: keras.ops.mean(y_pred, axis=-1))
    return made


def built(made):
    made(X)
    return made


def no_arguments():
    return built(NoArguments())


def unbuilt():
    return keras.Sequential([keras.layers.Dense(2)])


def test_an_unbuilt_model_gets_the_trained_weights():
    given = unbuilt()
    trainer = make(given, loss="sparse_categorical_crossentropy")
    fit(trainer)
    weights = given.get_weights()
    assert [w.shape for w in weights] == [(4, 2), (2,)]
    np.testing.assert_array_equal(weights[0], trainer.model.get_weights()[0])


def test_a_failure_is_not_hidden_by_the_weights_that_are_put_back():
    with pytest.raises(UserError, match="'accuracy'"):
        make(unbuilt(), loss="mse", metrics=["accurracy"]).fit(X, Y)


@pytest.mark.parametrize("kind", [functional, no_arguments])
def test_what_keras_saves_is_copied(kind):
    given = kind()
    trainer = make(given, loss="sparse_categorical_crossentropy")
    np.testing.assert_allclose(trainer.predict(X), given(X), rtol=1e-5)
    assert given.compiled == (kind is functional)
    assert trainer.model is not given


def test_a_model_that_has_got_other_layers_is_refused():
    given = model()
    trainer = make(given)
    trainer.predict(X)
    given.add(keras.layers.Dense(3))
    with pytest.raises(UserError, match="make a new Trainer"):
        trainer.predict(X)


class Units(NoArguments):
    """Of this one, `get_config` makes no other."""

    def __init__(self, units):
        super().__init__()
        self.units = units


def units():
    return built(Units(2))


def test_what_cannot_be_copied_is_saved_as_it_is(tmp_path):
    given = units()
    trainer = make(
        given, "default", loss="mse", data=(X, X[:, :2]), ema_momentum=0.5
    )
    trainer.train(3)
    weights = given.get_weights()
    trainer.save(tmp_path / "a.weights.h5")
    # The averages are saved, and the weights are back.
    for before, after in zip(weights, given.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)
    loaded = units()
    loaded.load_weights(tmp_path / "a.weights.h5")
    assert np.abs(loaded.get_weights()[0] - weights[0]).max() > 1e-4
    np.testing.assert_allclose(loaded(X), trainer.predict(X), rtol=1e-5)
    with pytest.raises(UserError, match="Keras cannot save a Units"):
        trainer.save(tmp_path / "a.keras")


def test_a_given_model_stays_compiled_as_it_was(tmp_path):
    given = model(metrics=["accuracy"])
    first = make(given, "default", data=(X, Y))
    first.build()
    assert given.optimizer is first.optimizer
    second = make(given, "default", data=(X, Y))
    second.build()
    measured = second.evaluate(X, Y)
    assert sorted(measured) == ["accuracy", "loss"]
    given.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    expected = loaded.evaluate(X, Y, verbose=0, return_dict=True)
    assert measured == pytest.approx(expected, rel=1e-5)
