"""How many reductions a step makes, and how many bytes they are handed.

    python -m benchmarks.reductions ours|bare MODEL

Two virtual CPUs under a `MirroredStrategy` whose `CrossDeviceOps` count what
they are given while the step is traced. Prints JSON.
"""

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.orders import Task

_REPLICAS = 2


class Counting(tf.distribute.ReductionToOneDevice):
    """Reduces as its base does, and adds up one replica's bytes.

    Values that are reduced together count as one reduction.
    """

    def __init__(self) -> None:
        super().__init__()
        self._together = False
        self.start()

    def start(self) -> None:
        """Counts from zero."""
        self.bytes = 0
        self.count = 0

    def batch_reduce_implementation(self, *given: Any, **options: Any) -> Any:
        """See `tf.distribute.CrossDeviceOps`."""
        self.count += 1
        self._together = True
        try:
            # It calls `reduce_implementation` for each value.
            return super().batch_reduce_implementation(*given, **options)
        finally:
            self._together = False

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, *rest: Any, **options: Any
    ) -> Any:
        """See `tf.distribute.CrossDeviceOps`."""
        self.count += not self._together
        self._add(per_replica_value)
        return super().reduce_implementation(
            reduce_op, per_replica_value, *rest, **options
        )

    def _add(self, per_replica: Any) -> None:
        value = getattr(per_replica, "values", (per_replica,))[0]
        parts = (
            (value.values, value.indices)
            if isinstance(value, tf.IndexedSlices)
            else (value,)
        )
        for one in parts:
            # Rows of a sparse gradient: as many as a replica looks up.
            self.bytes += (one.shape.num_elements() or 0) * one.dtype.size


def _strategy(counting: Counting) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(
        [f"cpu:{number}" for number in range(_REPLICAS)],
        cross_device_ops=counting,
    )


def ours(task: Task, counting: Counting) -> None:
    """Traces a step of the Trainer."""
    from benchmarks.contenders.ours import options
    from trainer import StrategyPlugin, Trainer
    from trainer.step.train_step import make_train_step

    class Plugin(StrategyPlugin):
        """The strategy that counts."""

        name = "counting"

        def create(self) -> tf.distribute.Strategy:
            """See `StrategyPlugin.create`."""
            return _strategy(counting)

    trainer = Trainer(**options(task), strategy=Plugin())
    trainer.build()
    trainer.follow_trainable()
    iterator = trainer.plugin.distribute(
        lambda replicas: trainer.batches("train").pieces(
            start=0, replicas=replicas, num_replicas=_REPLICAS, micro=1
        ),
        training=True,
    )
    step = tf.function(make_train_step(trainer.new_run().spec), autograph=False)
    counting.start()
    step.get_concrete_function(iterator)


def bare(task: Task, counting: Counting) -> None:
    """Traces a step of the bare loop."""
    from benchmarks.contenders.distribute import make_input, make_loop

    strategy = _strategy(counting)
    loop = make_loop(task, strategy, 1)
    feed = make_input(task, strategy)
    counting.start()
    loop.get_concrete_function(feed)


def main(side: str, model: str) -> None:
    """Traces a step and prints what it reduces."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * _REPLICAS)
    task = Task("trainer", model, steps=1, examples=640)
    counting = Counting()
    {"ours": ours, "bare": bare}[side](task, counting)
    found = {"bytes": counting.bytes, "reductions": counting.count}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
