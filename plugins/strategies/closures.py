"""Steps as closures that a coordinator hands to free workers."""

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer import average
from trainer.strategy import GraphLoop, MakePieces, Step

if TYPE_CHECKING:
    from plugins.strategies.parameter_server import ParameterServer


class Evaluation:
    """Runs evaluation on one free worker at a time."""

    def __init__(self, step: Step, plugin: "ParameterServer") -> None:
        self._plugin = plugin
        self._loop = tf.function(GraphLoop(step, plugin.strategy).many_steps)
        self._done = 0
        self._pieces: MakePieces | None = None

    def __call__(self, iterator: MakePieces, num_steps: int) -> Any:
        """See `Runner.__call__`; each call may find another worker free."""
        if iterator is not self._pieces:
            self._pieces, self._done = iterator, 0
        first = self._done

        def on_worker() -> Any:
            return self._plugin.strategy.distribute_datasets_from_function(
                lambda context: iterator(range(1), offset=first)
            )

        dataset = self._plugin.coordinator.create_per_worker_dataset(on_worker)
        self._done += num_steps
        (result,) = self._plugin.run_on_workers(
            self._loop, iter(dataset), [num_steps]
        )
        return result

    def trace(self, iterator: MakePieces) -> None:
        """Nothing to do here: a worker traces when it evaluates."""


class Closures:
    """Runs training steps on whichever worker is free."""

    def __init__(self, step: Step, plugin: "ParameterServer") -> None:
        self._plugin = plugin
        self._step = step
        self._loop = tf.function(
            GraphLoop(self._measured, plugin.strategy).many_steps
        )

    def __call__(self, iterator: Any, num_steps: int) -> Any:
        """See `Runner.__call__`."""
        plugin = self._plugin
        before = plugin.counts.values()
        results = []
        for sizes in plugin.closure_sizes(num_steps):
            results += plugin.run_on_workers(self._loop, iterator, sizes)
        plugin.counts.correct(
            before, updates=plugin.updates, num_steps=num_steps
        )
        return tf.nest.map_structure(lambda *parts: sum(parts), *results)

    def trace(self, iterator: Any) -> None:
        """Nothing to do here: workers trace their first closure."""

    def _measured(self, iterator: Any) -> Any:
        """The step, and how many updates came between its read and its own."""
        updates = self._plugin.updates
        before = updates.read_value()
        with tf.control_dependencies([before]):
            logs = self._step(iterator)
        with tf.control_dependencies(tf.nest.flatten(logs)):
            after = updates.assign_add(1, read_value=True)
        staleness = tf.cast(after - before - 1, tf.float32)
        return {**logs, "staleness": average(staleness)}
