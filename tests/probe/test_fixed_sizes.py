"""What takes batches of one size is refused where batches are cut."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from trainer import ArrayExamples, Trainer, UserError

BATCH = 8
X = np.random.default_rng(0).normal(size=(24, 5, 3)).astype("float32")
Y = X[:, 0, :1]


class Memory(layers.Layer):
    """A state for each row of a batch."""

    def __init__(self, rows, **options):
        super().__init__(**options)
        self.rows = rows

    def build(self, shape):
        self.kept = self.add_weight(
            shape=(self.rows, *shape[1:]), initializer="zeros", trainable=False
        )

    def call(self, x):
        y = x + self.kept
        self.kept.assign(0.5 * y)
        return y


class Folded(layers.Layer):
    def __init__(self, rows, **options):
        super().__init__(**options)
        self.rows = rows

    def call(self, x):
        return ops.reshape(x, (self.rows, 15))


def stateful(rows):
    return [
        keras.Input(batch_shape=(rows, 5, 3)),
        layers.LSTM(4, stateful=True, name="odd"),
    ]


def memory(rows):
    return [keras.Input((5, 3)), layers.Flatten(), Memory(rows, name="odd")]


def folded(rows):
    return [keras.Input((5, 3)), Folded(rows, name="odd")]


KINDS = [stateful, memory, folded]


def model(kind, rows):
    keras.utils.set_random_seed(1)
    return keras.Sequential([*kind(rows), layers.Dense(1)])


def trainer(kind, rows, **options):
    return Trainer(
        model=lambda: model(kind, rows),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.1),
        data=lambda split: ArrayExamples((X, Y), shuffle=False),
        batch_size=BATCH,
        strategy="default",
        **options,
    )


@pytest.mark.parametrize("rows", [BATCH, BATCH // 2])
@pytest.mark.parametrize("kind", KINDS)
def test_is_refused_before_the_first_step(kind, rows):
    cut = trainer(kind, rows, accumulation_steps=2)
    with pytest.raises(UserError) as raised:
        cut.train(3, verbose=0)
    said = str(raised.value)
    assert "in the layer 'odd'" in said
    assert "Let a model take any number of examples" in said
    assert "one replica without accumulation_steps" in said
    if rows != BATCH:
        assert "A batch of 8 examples fails" in said


@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_in_fit_where_batches_are_whole(kind):
    whole = trainer(kind, BATCH)
    whole.train(6, verbose=0)
    plain = model(kind, BATCH)
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    plain.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    pairs = zip(whole.model.get_weights(), plain.get_weights(), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
