"""ConfusionMatrix, SampleImages and LayerStatistics, by what they log."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.loop.test_logging import Recorder
from trainer import Trainer, UserError
from trainer_plugins.callbacks.confusion_matrix import ConfusionMatrix
from trainer_plugins.callbacks.layer_statistics import LayerStatistics
from trainer_plugins.callbacks.sample_images import SampleImages

LOSS = "sparse_categorical_crossentropy"
RNG = np.random.default_rng(0)
X = RNG.random((42, 4, 4, 1), "float32")
Y = RNG.integers(3, size=42)


def classifier():
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax", name="top"),
        ]
    )


def train(model_dir, *callbacks, steps=12, **options):
    recorder = Recorder()
    given = {
        "model": classifier,
        "loss": LOSS,
        "data": {"train": (X, Y), "eval": (X, Y)},
        "batch_size": 8,
        "strategy": "default",
        **options,
    }
    trainer = Trainer(**given)
    trainer.train_and_evaluate(
        steps,
        model_dir=str(model_dir),
        callbacks=[recorder, *callbacks],
        verbose=0,
    )
    return trainer, recorder


def test_the_confusion_matrix_counts_every_example(tmp_path):
    trainer, recorder = train(tmp_path, ConfusionMatrix(), SampleImages(5))
    predicted = trainer.predict(X).argmax(axis=1)
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (Y, predicted), 1)
    *_, (step, split, text) = recorder.under("confusion table")
    assert (step, split) == (12, "eval")
    rows = [one.split("|")[2:-1] for one in text.data.splitlines()[2:]]
    assert np.array_equal(np.array(rows, int), expected)
    *_, (_, _, image) = recorder.under("confusion image")
    corner = expected[2, 2] / expected[2].sum()
    assert image.data[0, -1, -1, 0] == pytest.approx(255 * corner, abs=1)
    # Beside it: the inputs, as they are, and no outputs, which are no images.
    *_, (_, _, samples) = recorder.under("inputs")
    assert samples.data.shape == (5, 4, 4, 1)
    assert samples.data.min() == 0
    assert samples.data.max() == 255
    assert recorder.under("outputs") == []


@pytest.mark.long
def test_what_is_no_classifier_is_refused(tmp_path):
    for callback, message in (
        (ConfusionMatrix(), "one output of shape"),
        (SampleImages(), "finds no images"),
    ):
        with pytest.raises(UserError, match=message):
            train(
                tmp_path,
                callback,
                model=lambda: keras.Sequential(
                    [keras.Input((2,)), keras.layers.Dense(1)]
                ),
                loss="mse",
                data={
                    "train": (X[:, 0, :2, 0], Y),
                    "eval": (X[:, 0, :2, 0], Y),
                },
            )


@pytest.mark.long
def test_layer_statistics_are_those_of_the_step(tmp_path):
    # The whole data in each step: Keras alone can repeat it.
    trainer, recorder = train(
        tmp_path,
        LayerStatistics(every=2),
        steps=3,
        batch_size=42,
        optimizer=lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.01),
    )
    model = classifier()
    model.set_weights(
        Trainer(classifier, strategy="default").model.get_weights()
    )
    model.compile(keras.optimizers.SGD(0.5, global_clipnorm=0.01), LOSS)
    model.train_on_batch(X, Y)
    with tf.GradientTape() as tape:
        loss = keras.losses.get(LOSS)(Y, model(X))
        loss = tf.reduce_mean(loss)
    gradients = tape.gradient(loss, [w.value for w in model.weights])
    model.train_on_batch(X, Y)
    for name, gradient, weight in zip(
        ("kernel", "bias"), gradients, model.get_weights(), strict=True
    ):
        for kind, values in (
            ("gradient", gradient.numpy()),
            ("weight", weight),
        ):
            ((step, _, norm),) = recorder.under(f"{kind}_norm/top/{name}")
            assert step == 2
            assert norm == pytest.approx(np.linalg.norm(values), rel=1e-4)
            ((_, _, found),) = recorder.under(f"{kind}s/top/{name}")
            left, right, counts = found.data.T
            assert counts.sum() == values.size
            assert left[0] == pytest.approx(values.min(), rel=1e-3, abs=1e-6)
            assert right[-1] == pytest.approx(values.max(), rel=1e-3, abs=1e-6)
    assert trainer.gradient_statistics is None
