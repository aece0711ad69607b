"""Data that `fit` of Keras takes, and so does that of a Trainer."""

import keras
import numpy as np
import pytest

from trainer import Trainer, UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype("float32")
Y = RNG.normal(size=(12, 3)).astype("float32")
BINARY = keras.losses.BinaryCrossentropy()


class Sentences(keras.utils.PyDataset):
    """Batches of sentences, which are as long as the longest of the batch."""

    lengths = (7, 7, 9)

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return np.ones((8, self.lengths[number], 3)), np.ones((8, 1))


class Ranks(Sentences):
    def __getitem__(self, number):
        return np.ones((8,) + (2,) * number)


def batches_of(data):
    return Trainer(keras.Sequential, data=data).batches("train")


def test_batches_of_different_lengths():
    batches = batches_of(Sentences())
    assert batches.element_spec[0].shape.as_list() == [None, None, 3]
    assert batches.element_spec[1].shape.as_list() == [None, 1]
    read = batches.read(start=0).take(batches.steps_per_epoch)
    assert sorted(x.shape[1] for x, _ in read) == [7, 7, 9]


def test_batches_of_different_ranks_are_refused():
    with pytest.raises(UserError, match="different numbers of axes"):
        batches_of(Ranks())


def flat_and_classes(units, *, loss):
    """A trainer of a model with as many outputs."""
    return Trainer(
        lambda: keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(units, activation="sigmoid"),
            ]
        ),
        loss=loss,
        strategy="default",
        batch_size=12,
    )


def test_a_last_axis_of_one_of_the_targets():
    trainer = flat_and_classes(3, loss="mse")
    trainer.evaluate(X, Y[..., None])
    with pytest.raises(UserError, match="y has shape"):
        trainer.evaluate(X, Y[:, :2, None])


def test_the_value_of_a_target_that_does_not_count(caplog):
    trainer = flat_and_classes(1, loss=BINARY)
    y = np.array([0.0, 1.0, -1.0] * 4)[:, None]
    free, counts = np.array([1.0, 2.0, 0.0] * 4), np.array([1.0, 0.0, 2.0] * 4)
    for weight in (free, free[:, None]):
        trainer.evaluate(X, y, sample_weight=weight)
    assert "y has the value" not in caplog.text
    for weight in (None, counts):
        trainer.evaluate(X, y, sample_weight=weight)
    # Keras computes it, and so does the Trainer; it is said once.
    assert caplog.text.count("y has the value -1") == 1


def test_the_weights_of_the_data_are_looked_at():
    trainer = Trainer(
        lambda: keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")]
        ),
        loss=BINARY,
        strategy="default",
        batch_size=12,
    )
    y = np.array([0.0, 1.0, -1.0] * 4)
    weight = np.array([1.0, 1.0, 0.0] * 4)
    found = trainer.evaluate(X, y, sample_weight=weight)
    compiled = trainer.model
    compiled.compile(loss=BINARY)
    expected = compiled.evaluate(X, y, sample_weight=weight, verbose=0)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
