"""Logs in steps under a strategy: STRATEGY DIRECTORY."""

import sys

import keras
import numpy as np
import tensorflow as tf

from tests.helpers import make_trainer
from trainer import Trainer, average

# Batches of 8, the last one of 5: three replicas get 2, 2 and 1.
X = np.random.default_rng(0).normal(size=(29, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class OfStep(Trainer):
    def per_example_loss(self, x, y, y_pred):
        error = tf.abs(y - y_pred)[:, 0]
        self.log("error", error)
        self.log("constant", average(tf.constant(0.25)))
        self.log("ratio", average(tf.reduce_sum(y), tf.reduce_sum(y * y)))
        return tf.square(y - y_pred)


def main(strategy, directory):
    cpus = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpus, [tf.config.LogicalDeviceConfiguration()] * 3
    )
    trainer = make_trainer(
        lambda: keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, name="top")]
        ),
        kind=OfStep,
        data={"train": (X, Y), "eval": (X, Y)},
        strategy=strategy,
        accumulation_steps=2,
        jit_compile=False,
    )
    values = trainer.train_and_evaluate(8, verbose=0)
    np.savez(f"{directory}/results.npz", **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
