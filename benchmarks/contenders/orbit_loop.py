"""Orbit: a `StandardTrainer` under a `Controller`.

Orbit leaves the step to its user, so it is that of the bare loop, and so are
input and metrics. 100 steps per loop; no summaries and no checkpoints, which
are off unless one asks for them.
"""

from typing import Any

import orbit
import tensorflow as tf

from benchmarks import models
from benchmarks.contenders import inputs
from benchmarks.contenders.bare import make_step
from benchmarks.contenders.strategy import make_strategy
from benchmarks.orders import Orders, Task


class Loop(orbit.StandardTrainer):
    """Trains a model with Adam."""

    def __init__(
        self,
        task: Task,
        spec: models.Spec,
        strategy: tf.distribute.Strategy,
    ) -> None:
        self._unit = task.unit
        self._strategy = strategy
        step = make_step(spec.make, models.BATCH)
        self._step = (
            tf.function(step, jit_compile=True) if task.form == "xla" else step
        )
        self.global_step = orbit.utils.create_global_step()
        self._sums = [tf.Variable(0.0), tf.Variable(0.0)]
        # The global batch, which the strategy divides.
        dataset = inputs.rows(spec.arrays(task.examples), models.BATCH)
        super().__init__(strategy.experimental_distribute_dataset(dataset))

    def train_loop_begin(self) -> None:
        """Starts sums anew."""
        for one in self._sums:
            one.assign(0.0)

    def train_step(self, iterator: Any) -> None:
        """One step."""
        found = self._strategy.run(self._step, args=next(iterator))
        for total, one in zip(self._sums, found, strict=True):
            total.assign_add(self._strategy.reduce("SUM", one, axis=None))
        self.global_step.assign_add(1)

    def train_loop_end(self) -> dict[str, tf.Tensor]:
        """The means of the loop."""
        loss, accuracy = self._sums
        return {
            "loss": loss / self._unit,
            "accuracy": accuracy / self._unit,
        }


def run(task: Task, orders: Orders) -> None:
    """Trains in turns."""
    strategy = make_strategy(task)
    with strategy.scope():
        loop = Loop(task, models.find(task.model), strategy)
    controller = orbit.Controller(
        strategy=strategy,
        trainer=loop,
        global_step=loop.global_step,
        steps_per_loop=task.unit,
    )
    done = 0
    while True:
        orders.wait()
        done += task.steps
        controller.train(done, checkpoint_at_completion=False)
