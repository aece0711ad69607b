"""Keras' `fit` on arrays, on TensorFlow or on JAX.

At its best settings: 100 steps in one execution, or fewer where 100 do not
divide both an epoch and a turn; no progress bar, and XLA as asked for; on JAX
Keras always compiles the step. One call of `fit` for all turns, because a call
has costs of its own.
"""

import math
from typing import Any

import keras

from benchmarks import models
from benchmarks.orders import Orders, Task

_EPOCHS = 1_000_000


class Turns(keras.callbacks.Callback):
    """Waits for the next turn every so many steps."""

    def __init__(self, steps: int, executed: int, orders: Orders) -> None:
        super().__init__()
        self._steps = steps
        self._executed = executed
        self._orders = orders
        self._done = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Waits for the first turn."""
        self._orders.wait()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Counts one execution."""
        self._done += self._executed
        if self._done >= self._steps:
            self._done = 0
            self._orders.wait()


def run(task: Task, orders: Orders) -> None:
    """Trains in turns."""
    spec = models.find(task.model)
    x, y = spec.arrays(task.examples)
    # The end of an epoch cuts an execution short: each is to be whole, so that
    # a turn has as many steps as it is counted for.
    executed = math.gcd(task.unit, len(x) // models.BATCH)
    model = spec.make()
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        steps_per_execution=executed,
        jit_compile=keras.backend.backend() == "jax" or task.form == "xla",
    )
    model.fit(
        x,
        y,
        batch_size=models.BATCH,
        epochs=_EPOCHS,
        shuffle=True,
        verbose=0,
        callbacks=[Turns(task.steps, executed, orders)],
    )
