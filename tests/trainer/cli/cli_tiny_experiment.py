"""An experiment of a few lines, for the tests of the command line."""

import os

import gin
import keras
import numpy as np

import trainer


@gin.configurable
def linear(units=1, activation=None):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units, activation=activation)]
    )


@gin.configurable
def broken_model(units=-3):
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])


@gin.configurable
def sums(split, size=64, batch_size=None, data_dir=None):
    x = np.random.default_rng(len(split)).random((size, 4), "float32")
    return x, x.sum(axis=1, keepdims=True)


@gin.configurable
def preempted(split):
    raise trainer.StartAgain("preempted at step 0")


@gin.configurable
def interrupted(split):
    raise KeyboardInterrupt


@gin.configurable
class Small:
    def __init__(self, units=1):
        self.units = units


@gin.configurable
class ScaledTrainer(trainer.Trainer):
    def __init__(self, *, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale


@gin.configurable
class Fails(keras.callbacks.Callback):
    """Fails after the first loop, in a way that the environment names."""

    def on_train_batch_end(self, batch, logs=None):
        kind = os.environ["FAIL_WITH"]
        if kind == "moved_away":
            if os.path.isdir("run"):
                os.rename("run", "away")
                open("run", "w").close()
            return
        raise {
            "start_again": trainer.StartAgain("preempted"),
            "interrupt": KeyboardInterrupt(),
            "user_error": trainer.UserError("monitor is wrong"),
            "bug": ZeroDivisionError("a bug"),
        }[kind]


@gin.configurable
def tower(width=1):
    return width


@gin.configurable
def reduction(kind="auto"):
    return kind
