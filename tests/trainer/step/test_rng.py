"""Layers draw random numbers as Keras has it, and a resumed run draws on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import ordinary
from trainer import Trainer, UserError
from trainer_plugins import Checkpoint

TIMES, WIDTH, BATCH = 5, 16, 4
X = np.ones((BATCH, TIMES, WIDTH), "float32")


class Cell(keras.layers.Layer):
    """A cell that draws anew at each time step."""

    state_size = 1
    output_size = WIDTH

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, states, training=None):
        return self.dropout(x, training=training), states


class OwnLoop(keras.layers.Layer):
    """A loop of one's own, and one more in each of its iterations."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=None):
        def drop(_, before):
            return self.dropout(tf.ones_like(before), training=training)

        def step(t, times):
            first = drop(t, x[:, 0])
            inner = keras.ops.fori_loop(
                0, 2, lambda i, b: b + drop(i, b), first
            )
            last = tf.cond(
                t > 1, lambda: drop(t, x[:, 1]), lambda: drop(t, x[:, 2])
            )
            return times.write(t, tf.concat([first, inner - first, last], -1))

        times = tf.TensorArray(tf.float32, TIMES)
        times = keras.ops.fori_loop(0, TIMES, step, times)
        return tf.transpose(times.stack(), [1, 0, 2])


class InAFunction(OwnLoop):
    @tf.function
    def call(self, x, training=None):
        return self.dropout(x, training=training)


LAYERS = {
    "time distributed": lambda: keras.layers.TimeDistributed(
        keras.layers.Dropout(0.5)
    ),
    "cell": lambda: keras.layers.RNN(Cell(), return_sequences=True),
    "own": OwnLoop,
}


class Keeps(keras.layers.Layer):
    """Keeps what it sees in training."""

    def build(self, shape):
        self.seen = self.add_weight(
            shape=shape[1:], trainable=False, initializer="zeros"
        )
        self.scale = self.add_weight(shape=())

    def call(self, x, training=None):
        if training:
            self.seen.assign(x[0])
        return self.scale * keras.ops.mean(x, [1, 2])[:, None]


def train(layer, steps, folder=None):
    """What the first example's dropout has left in the last step."""

    def model():
        inputs = keras.Input((TIMES, WIDTH))
        return keras.Model(inputs, Keeps()(layer()(inputs)))

    trainer = Trainer(
        model=model,
        loss="mse",
        data=lambda split: (X, X[:, 0, :1]),
        batch_size=BATCH,
        strategy="default",
        seed=5,
    )
    saving = {"callbacks": [Checkpoint()], "model_dir": str(folder)}
    trainer.train(steps, **(saving if folder else {}))
    return trainer.model.layers[-1].seen.numpy()


@pytest.mark.parametrize("name", ordinary(LAYERS, ["cell", "own"]))
def test_each_iteration_of_a_loop_draws_anew(name, tmp_path):
    seen = train(LAYERS[name], 2)
    drawn = seen.reshape(-1, WIDTH)
    assert len(drawn) >= TIMES
    assert len({tuple(mask) for mask in drawn}) == len(drawn)
    train(LAYERS[name], 1, tmp_path)
    np.testing.assert_array_equal(train(LAYERS[name], 2, tmp_path), seen)
    assert (train(LAYERS[name], 3) != seen).any()


def test_a_function_that_is_traced_once_is_refused():
    with pytest.raises(UserError, match="draws random numbers in a tf.funct"):
        train(InAFunction, 1)
