"""Losses over the global batch, on pieces of every size."""

import keras
import numpy as np
import tensorflow as tf

from trainer import ArrayExamples, Guard, Trainer, average
from trainer_experiments.contrastive import SimCLR

STEPS, RATE = 4, 0.5
# Batches and examples: a last batch of one leaves replicas without any.
SIZES = {"even": (6, 18), "uneven": (7, 15)}


def arrays(size):
    """Two views of each example, and its class."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(size, 1, 4))
    views = x + 0.3 * rng.normal(size=(size, 2, 4))
    return views.astype("float32"), rng.integers(0, 3, size)


def model():
    return keras.Sequential(
        [
            keras.Input((2, 4)),
            keras.layers.Dense(
                3, kernel_initializer=keras.initializers.GlorotUniform(1)
            ),
            keras.layers.UnitNormalization(),
        ]
    )


class OfKeras(Trainer):
    """Losses of Keras over pairs, and over all of a batch."""

    def global_loss(self, y, y_pred):
        return of_keras(y, y_pred)


def of_keras(y, y_pred):
    shares = keras.ops.softmax(y_pred[:, 1])
    return keras.losses.Circle(gamma=2.0)(
        y, y_pred[:, 0]
    ) + keras.losses.Dice()(keras.ops.one_hot(y, 3), shares)


class ByHand(Trainer):
    """A step of one's own that gathers by itself."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self.forward(x, training=True)
            found = self.all_gather({"y": y, "y_pred": y_pred}).values
            loss = of_keras(found["y"], found["y_pred"])
            rows = tf.cast(tf.shape(x)[0], tf.float32)
            loss = average(loss * rows, rows)
        variables = self.model.trainable_variables
        gradients = self.gradients(tape, loss, variables)
        self.apply_gradients(gradients, variables)
        return {"loss": loss}


class Numbered(Trainer):
    """Says what `all_gather` gives, for each kind of number."""

    def train_step(self, batch):
        x = batch[0][:, 0, 0]
        rows = tf.range(tf.shape(x)[0])
        kinds = {
            "float": x,
            "half": tf.cast(x, tf.float16),
            "int": rows,
            "byte": tf.cast(rows + 250, tf.uint8),
            "flag": x > 0,
        }
        whole, offset = self.all_gather(kinds)
        own = whole["float"][offset : offset + tf.shape(x)[0]]
        order = tf.range(1.0, tf.cast(tf.size(whole["float"]) + 1, tf.float32))
        found = {
            name: tf.reduce_sum(order * tf.cast(whole[name], tf.float32))
            for name in kinds
        }
        for name in kinds:
            assert whole[name].dtype == kinds[name].dtype
        return found | {"error": tf.reduce_sum(tf.abs(own - x))}


class Random(Trainer):
    """Draws in the loss: all replicas must compute the same."""

    def global_loss(self, y, y_pred):
        drop = self.model.get_layer("drop")
        return tf.reduce_sum(drop(tf.ones([64]), training=True)) + 0 * (
            tf.reduce_sum(y_pred) + tf.cast(tf.shape(y)[0], tf.float32)
        )


def with_dropout():
    return keras.Sequential([model(), keras.layers.Dropout(0.5, name="drop")])


def trainer_of(strategy, kind, *, batch, size, **options):
    return kind(
        **{
            "model": model,
            "optimizer": lambda: keras.optimizers.SGD(RATE),
            "data": lambda split: ArrayExamples(arrays(size), shuffle=False),
            "batch_size": batch,
            "strategy": strategy,
            **options,
        }
    )


def trained(strategy, kind, sizes, **options):
    batch, size = SIZES[sizes]
    trainer = trainer_of(strategy, kind, batch=batch, size=size, **options)
    logs = trainer.train(STEPS, log_every=STEPS)
    if kind is not ByHand:
        logs |= {"val_loss": trainer.evaluate()["loss"]}
    weights = trainer.model.get_weights()
    return logs | {f"weight{i}": value for i, value in enumerate(weights)}


def even(strategy):
    """With a guard, which cuts the step into phases."""
    return trained(strategy, SimCLR, "even", guard=Guard())


def uneven(strategy):
    return trained(strategy, SimCLR, "uneven")


def keras_losses(strategy):
    return trained(strategy, OfKeras, "uneven")


def by_hand(strategy):
    return trained(strategy, ByHand, "uneven")


def numbered(strategy):
    return trainer_of(strategy, Numbered, batch=5, size=5).train(1, log_every=1)


def drawn(strategy):
    trainer = trainer_of(strategy, Random, batch=5, size=5, model=with_dropout)
    return {"loss": trainer.train(1, log_every=1)["loss"]}


CASES = {
    even: ("one_device", "mirrored_2"),
    uneven: ("mirrored_2", "mirrored_3"),
    keras_losses: ("mirrored_2",),
    by_hand: ("mirrored_3",),
    numbered: ("mirrored_3", "central_storage_2"),
    drawn: ("default", "mirrored_2"),
}
