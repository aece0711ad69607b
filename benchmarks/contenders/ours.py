"""The Trainer, as `python -m trainer` runs it.

One call of `train`, which goes on for ever: what a run does once, such as
restoring, tracing and exporting, is not what a turn measures. It has the
callbacks of `experiments/base.gin` at their defaults in a run directory of its
own, so that logs, TensorBoard, JSON lines and a checkpoint of everything in
each epoch are part of it; no peer writes anything. A save goes on in the
background. Its end is waited for within the turn: it must not run in the time
of another contender.
"""

import functools
import tempfile
from typing import Any

import keras

from benchmarks import models
from benchmarks.orders import Orders, Task
from trainer import Callback, Trainer, experiment
from trainer_plugins import (
    Checkpoint,
    Export,
    JsonLines,
    Preemption,
    Progress,
    TensorBoard,
    Watchdog,
)

_STEPS = 1_000_000_000
_DEFAULTS = (
    *(Progress, TensorBoard, JsonLines, Export, Preemption, Watchdog),
    Checkpoint,
)


class Turns(Callback):
    """Waits for the next turn, every so many steps, after all others.

    Args:
        steps: in a turn.
        orders: says when the next one begins.
        others: the run's other callbacks.
    """

    # Behind Checkpoint, so that a save of this step has begun.
    runs_last = True

    def __init__(
        self, steps: int, orders: Orders, others: list[keras.callbacks.Callback]
    ) -> None:
        super().__init__()
        self._steps = steps
        self._orders = orders
        self._others = others

    def next_due(self, step: int) -> int:
        """See `Callback.next_due`."""
        return (step // self._steps + 1) * self._steps

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Everything is built and traced: waits for the first turn."""
        compiled = self.run.accounts.summary()["compile"]
        self._orders.wait(trace_seconds=compiled)

    def on_save(self, step: int, logs: dict[str, float]) -> None:
        """Ends a turn, and waits for the next."""
        if step % self._steps:
            return
        for callback in self._others:
            if isinstance(callback, Checkpoint):
                # The event in which it waits for a save that is under way.
                callback.on_divergence(step)
        self._orders.wait(form=str(self.run.spec.form))


class Idle(keras.callbacks.Callback):
    """A callback of Keras' kind that does nothing in the usual events."""

    def on_train_batch_end(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        """Does nothing, but may read what it is given."""

    def on_epoch_end(
        self, epoch: int, logs: dict[str, float] | None = None
    ) -> None:
        """Does nothing."""


def run(task: Task, orders: Orders) -> None:
    """Trains in turns."""
    spec = models.find(task.model)
    form: Any = task.form or "auto"
    accuracy = keras.metrics.SparseCategoricalAccuracy
    trainer = functools.partial(
        Trainer,
        model=spec.make,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam,
        metrics=[functools.partial(accuracy, name="accuracy")],
        data=lambda split: spec.arrays(task.examples),
        batch_size=models.BATCH,
        jit_compile=form,
    )
    callbacks: list[keras.callbacks.Callback] = (
        [make() for make in _DEFAULTS]
        if task.callbacks is None
        else [Idle() for _ in range(task.callbacks)]
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        experiment.build(
            mode="train",
            model_dir=folder,
            trainer=trainer,
            strategy=task.strategy,
            train_steps=_STEPS,
            callbacks=[*callbacks, Turns(task.steps, orders, callbacks)],
            log_every=100 if task.callbacks is None else task.unit,
            steps_per_loop=task.loop,
            virtual_devices=task.replicas if task.replicas > 1 else None,
        ) as built,
    ):
        built.run()
