"""What the chaos experiment is made of."""

import os
import time

import gin
import keras

from trainer import Callback


@gin.register
def busy_net():
    """Dropout, batch statistics and augmentation: all kinds of state."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.1, 0.1),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


@gin.register
class Phases(Callback):
    """Says in a file what the process is at, so that it is killed there.

    Each phase is stretched a little: a kill at a random moment of it must
    have a chance.
    """

    def __init__(self):
        super().__init__()
        self._path = os.environ.get("PHASE_FILE")
        self._seconds = float(os.environ.get("PHASE_SECONDS", "0.02"))

    def on_train_batch_begin(self, batch, logs=None):
        self._enter("step")

    def on_test_begin(self, logs=None):
        self._enter("evaluation")

    def on_save(self, step, logs):
        self._enter("save")

    def _enter(self, phase):
        if self._path is not None:
            with open(f"{self._path}.tmp", "w") as file:
                file.write(f"{phase} {self.trainer.step}")
            os.replace(f"{self._path}.tmp", self._path)
            time.sleep(self._seconds)
