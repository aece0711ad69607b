"""What the frozen runs are configured with: models, data, a step, plugins.

A user's module, named by the gin files beside it. It knows the framework by
what the documentation offers: `from trainer import`, and the entry points of
the group `trainer.plugins`.
"""

import dataclasses
import importlib.metadata

import gin
import keras
import numpy as np
import tensorflow as tf

from trainer import Callback, StrategyPlugin, Trainer, average

FEATURES, HIDDEN = 6, 8
VOCABULARY, LENGTH = 11, 5
# Batches of 12 make an epoch of four whole ones and one of 2 examples: some
# replica of three has none then, and each of two micro-batches has one.
TRAIN, EVAL = 50, 26


def _size(split):
    return TRAIN if split == "train" else EVAL


@gin.configurable(module="frozen")
def regression_data(split, scale=1.0, outlier=None):
    """Inputs, targets and sample weights; one target may be far off."""
    rng = np.random.default_rng(_size(split))
    x = rng.normal(size=(_size(split), FEATURES)).astype("float32")
    y = (2 * np.sin(x.sum(1, keepdims=True)) + x[:, :1]).astype("float32")
    weight = rng.uniform(0.5, 2.0, size=_size(split)).astype("float32")
    y *= scale
    if outlier is not None and split == "train":
        y[5] = outlier
    return x, y, weight


@gin.configurable(module="frozen")
def data_with_a_fault(split, batch_size, fault=7):
    """The same as batches without end, one of which explodes."""
    arrays = tf.data.Dataset.from_tensor_slices(regression_data(split))
    batches = arrays.batch(batch_size)
    if split != "train":
        return batches

    def explode(number, batch):
        x, y, weight = batch
        return x, y * tf.where(tf.equal(number, fault), 1e4, 1.0), weight

    return batches.repeat().enumerate().map(explode)


@gin.configurable(module="frozen")
def regression_model(dropout=None, scale=None):
    """Batch statistics and L2; all weights have a gradient to speak of."""
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(
            HIDDEN,
            activation="tanh",
            kernel_regularizer=keras.regularizers.L2(0.01),
            name="hidden",
        ),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(1, name="out"),
    ]
    if dropout is not None:
        layers.insert(3, keras.layers.Dropout(dropout, name="dropout"))
    if scale is not None:
        layers.append(keras.layers.Rescaling(scale, name="scale"))
    return keras.Sequential(layers, name="regression")


@gin.configurable(module="frozen")
def token_data(split):
    """Padded sequences of tokens (0 is padding) with a label for each."""
    rng = np.random.default_rng(_size(split) + 1)
    tokens = rng.integers(1, VOCABULARY, size=(_size(split), LENGTH))
    lengths = rng.integers(1, LENGTH + 1, size=_size(split))
    tokens[np.arange(LENGTH)[None, :] >= lengths[:, None]] = 0
    labels = (tokens * 3 + 1) % VOCABULARY
    return tokens.astype("int32"), labels.astype("int32")


@gin.configurable(module="frozen")
def token_model():
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, 4, mask_zero=True, name="rows"),
            keras.layers.Dense(VOCABULARY, name="out"),
        ],
        name="tokens",
    )


@gin.configurable(module="frozen")
def decay(epoch, learning_rate):
    """For keras.callbacks.LearningRateScheduler."""
    return learning_rate * 0.97


@gin.configurable(module="frozen")
class LeaveAt(Callback):
    """Saves, and ends the process with exit code 75."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if self.run.step == self.step:
            self.run.start_again(f"step {self.step}")

    def next_due(self, step):
        return self.step if step < self.step else None


@gin.configurable(module="frozen")
class OwnStep(Trainer):
    """A step with two losses and two optimizers."""

    def train_step(self, batch):
        x, y, weight = batch
        with tf.GradientTape(persistent=True) as tape:
            error = self.model(x, training=True) - y
            count = tf.cast(tf.shape(x)[0], tf.float32)
            squared = average(tf.reduce_sum(error[:, 0] ** 2), count)
            absolute = average(
                tf.reduce_sum(weight * tf.abs(error[:, 0])),
                tf.reduce_sum(weight),
            )
        for name, loss in (("hidden", squared), ("out", absolute)):
            variables = self.model.get_layer(name).trainable_variables
            gradients = self.gradients(tape, loss, variables)
            self.apply_gradients(gradients, variables, optimizer=name)
        return {"loss": squared, "absolute": absolute}


def _with_static_shapes(name):
    """The installed strategy of a name, with batches of one shape."""
    (entry,) = importlib.metadata.entry_points(
        group="trainer.plugins", name=name
    )
    plugin = entry.load()
    options = dataclasses.replace(plugin.options, static_shapes=True)
    members = {"name": f"static_{name}", "options": options}
    return type(f"Static{plugin.__name__}", (plugin,), members)


STATIC = [
    gin.configurable(_with_static_shapes(name), module="frozen")
    for name in (
        "default",
        "one_device",
        "mirrored",
        "central_storage",
        "multi_worker_mirrored",
        "parameter_server",
    )
]
assert all(issubclass(plugin, StrategyPlugin) for plugin in STATIC)
