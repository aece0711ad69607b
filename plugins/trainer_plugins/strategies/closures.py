"""Runners that schedule steps as closures on free workers."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import average
from trainer.plugin_api import (
    GraphLoop,
    MakePieces,
    Step,
    Sums,
    graph_function,
    outside_graph,
)
from trainer_plugins.strategies.worker_pool import WorkerPool


class Evaluation:
    """Evaluates on one free worker at a time."""

    def __init__(self, step: Step, worker_pool: WorkerPool) -> None:
        self._worker_pool = worker_pool
        self._steps = GraphLoop(step, worker_pool.strategy)
        self._loop = graph_function(self._steps.each_step)
        self._done = 0
        self._pieces: MakePieces | None = None

    def __call__(
        self,
        iterator: MakePieces,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `Runner.__call__`; each call may run on another worker."""
        # A new iterator is a new evaluation, which starts at the first batch.
        if iterator is not self._pieces:
            self._pieces, self._done = iterator, 0
        first = self._done
        # Made anew for each call: a free worker does not have the input of the
        # one that ran the last call.
        remaining = self._worker_pool.iterator(
            lambda _: iterator(range(1), offset=first)
        )
        self._done += num_steps
        results = self._worker_pool.run(self._loop, remaining, [num_steps])
        return _added(carried, self._steps, results)

    def trace(self, iterator: MakePieces) -> None:
        """Does nothing: a worker traces when it evaluates."""


class Closures:
    """Runs training steps on free workers."""

    def __init__(self, step: Step, worker_pool: WorkerPool) -> None:
        self._worker_pool = worker_pool
        self._step = step
        self._steps = GraphLoop(self._measured, worker_pool.strategy)
        self._loop = graph_function(self._steps.each_step)

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `Runner.__call__`."""
        results = self._worker_pool.train(self._loop, iterator, num_steps)
        return _added(carried, self._steps, results)

    def trace(self, iterator: Any) -> None:
        """Traces what is scheduled; a worker makes it its own at first use."""
        with outside_graph(), self._worker_pool.strategy.scope():
            self._loop.get_concrete_function(
                tf.type_spec_from_value(iterator), tf.TensorSpec([], tf.int64)
            )

    def operations(self) -> collections.Counter[str]:
        """See `GraphLoop.operations`."""
        return self._steps.operations()

    def _measured(self, iterator: Any) -> Any:
        """Runs the step, and measures its staleness.

        That is the number of updates between its read and its own update.
        """
        updates = self._worker_pool.updates
        # On the server, where the weights are read and updated as well: no
        # message must arrive before the step begins, and one takes the result.
        with tf.device(updates.device):
            before = tf.raw_ops.ReadVariableOp(
                resource=updates.handle, dtype=updates.dtype
            )
        logs = self._step(iterator)
        # The graph alone does not order the count after the step.
        with (
            tf.device(updates.device),
            tf.control_dependencies(tf.nest.flatten(logs)),
        ):
            after = updates.assign_add(1, read_value=True)
            # Without this step's own update.
            staleness = tf.cast(after - before - 1, tf.float32)
        return {**logs, "staleness": average(staleness)}


def _added(
    carried: Sequence[Sums | None], steps: GraphLoop, results: list[Any]
) -> list[Sums]:
    """Adds the results of closures to sums, step by step."""
    layout = steps.layout
    assert layout is not None  # A worker has traced the step.
    found = []
    for sums in carried:
        sums = sums or Sums.nothing(layout)
        row = np.array(sums.fitted(layout, 1)[0])
        for result in results:
            # In the order of scheduling, not of finishing: the last bits of a
            # sum depend on it.
            for of_step in np.asarray(result):
                row += of_step
        found.append(Sums(layout, row[np.newaxis, np.newaxis]))
    return found
