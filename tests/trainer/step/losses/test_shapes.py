"""A loss in any form gives what `fit` gives on one device, or is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import long
from trainer import ArrayExamples, Trainer, UserError

RNG = np.random.default_rng(11)
SIZE, BATCH, TOKENS = 14, 8, 3
X = RNG.normal(size=(SIZE, 4)).astype("float32")
Y = RNG.normal(size=(SIZE,)).astype("float32")
LABELS = RNG.integers(0, 3, (SIZE, TOKENS))


def one():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def tokens():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(TOKENS * 3),
            keras.layers.Reshape((TOKENS, 3)),
            keras.layers.Softmax(),
        ]
    )


def trainer_of(loss, *, model=one, y=Y, kind=Trainer, **options):
    return kind(
        **{
            "model": model,
            "loss": loss,
            "optimizer": lambda: keras.optimizers.SGD(0.1),
            "data": lambda split: ArrayExamples((X, y), shuffle=False),
            "batch_size": BATCH,
            "strategy": "default",
            # As much as two replicas: pieces of unequal size.
            "accumulation_steps": 2,
            **options,
        }
    )


def cubed(y, y_pred):
    return tf.reduce_mean(tf.abs(y_pred - y) ** 3, -1)


IGNORING = keras.losses.SparseCategoricalCrossentropy(ignore_class=1)
BY_WEIGHT = keras.losses.SparseCategoricalCrossentropy(
    ignore_class=1, reduction="mean_with_sample_weight"
)


@pytest.mark.parametrize(
    ("loss", "model", "y"),
    [
        (IGNORING, tokens, LABELS),
        long(BY_WEIGHT, tokens, LABELS),
        long("mse", one, Y),
        (cubed, one, Y),
    ],
    ids=["ignored class", "ignored class, weighted", "a name", "a function"],
)
def test_equals_fit(loss, model, y):
    trainer = trainer_of(loss, model=model, y=y)
    fitted = model()
    fitted.set_weights(trainer.model.get_weights())
    fitted.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    for step, part in enumerate((slice(0, BATCH), slice(BATCH, SIZE))):
        fitted.reset_metrics()
        expected = fitted.train_on_batch(X[part], y[part])
        found = trainer.train(step + 1, log_every=1)["loss"]
        assert found == pytest.approx(float(expected), rel=1e-5)
    for ours, theirs in zip(
        trainer.model.get_weights(), fitted.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def over_pairs(y, y_pred):
    return tf.reduce_mean(tf.abs(y_pred - tf.transpose(y_pred)), 1)


def divided(y, y_pred):
    return (y - y_pred)[:, 0] ** 2 / tf.cast(tf.shape(y)[0], tf.float32)


def over_examples(y, y_pred):
    """As many as one example has values: by chance, as there are examples."""
    return tf.reduce_mean(tf.tile((y - y_pred) ** 2, [1, BATCH // 2]), 0)


class Broadcast(keras.losses.Loss):
    def call(self, y, y_pred):
        return (y - y_pred) ** 2


class Contrasted(Trainer):
    def per_example_loss(self, x, y, y_pred):
        return tf.reduce_mean((x[:, :1] - tf.transpose(y_pred)) ** 2, 1)


CENTRED = keras.losses.CosineSimilarity(axis=0)
MIXING = "a different value when the other examples .* Trainer.global_loss"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss": keras.losses.Circle()}, MIXING),
        long({"loss": "circle"}, MIXING),
        long({"loss": over_pairs}, MIXING),
        ({"loss": Broadcast()}, MIXING),
        ({"loss": divided}, MIXING),
        ({"loss": None, "kind": Contrasted}, MIXING),
        ({"loss": over_examples}, "one row for each"),
        ({"loss": CENTRED}, "one row for each .* reduces axis 0"),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_a_loss_over_several_examples_is_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        trainer_of(**options).train(1)


def test_a_loss_over_pairs_is_keras_own_where_a_batch_is_whole():
    trainer = trainer_of(keras.losses.Circle(), accumulation_steps=1)
    y_pred = trainer.model(X)
    expected = [
        keras.losses.Circle()(Y[part], y_pred[part])
        for part in (slice(0, BATCH), slice(BATCH, SIZE))
    ]
    found = trainer.evaluate(steps=1)["loss"]
    assert found == pytest.approx(float(expected[0]), rel=1e-5)


def test_a_loss_that_needs_a_number_of_examples_is_refused():
    def of_whole_pieces(y, y_pred):
        pairs = tf.reshape(y - y_pred, [-1, 3])[:, :1]
        return tf.reshape(tf.tile(pairs, [1, 3]), [-1])

    trainer = trainer_of(of_whole_pieces, accumulation_steps=2, batch_size=6)
    with pytest.raises(UserError, match="another number of examples fails"):
        trainer.train(1)


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_max(tf.abs(y_true - y_pred))


def test_a_loss_that_reduces_by_itself_is_refused():
    with pytest.raises(UserError, match="OwnCall overrides __call__"):
        trainer_of({"only": OwnCall()})


def flattened():
    return keras.Sequential([one(), keras.layers.Lambda(lambda y: y[:, 0])])


def total(y, y_pred):
    return tf.reduce_sum((y - y_pred) ** 2)


class Total(Trainer):
    def per_example_loss(self, x, y, y_pred):
        return total(y, y_pred)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {
                "loss": keras.losses.Dice(),
                "model": tokens,
                "y": LABELS[..., None],
            },
            r"Dice\(axis=\(1, 2\)\)\. .* Trainer.global_loss",
        ),
        ({"loss": "tversky"}, r"Tversky\(axis=\(1,\)\)"),
        ({"loss": "mae", "model": flattened}, r"the shape \[batch, 1\]"),
        ({"loss": total}, r"Let it return the shape \[batch\]"),
        ({"loss": None, "kind": Total}, r"Let it return the shape \[batch\]"),
    ],
)
def test_a_scalar_is_refused_with_what_helps(options, sentence):
    with pytest.raises(UserError, match=sentence):
        trainer_of(**options).train(1)


def test_targets_that_would_broadcast_over_examples_are_refused():
    def wide():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(BATCH)])

    trainer = trainer_of("mse", model=wide, accumulation_steps=1)
    with pytest.raises(UserError, match="would meet outputs of another"):
        trainer.train(1)
