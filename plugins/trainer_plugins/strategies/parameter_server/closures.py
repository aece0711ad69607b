"""Runners that schedule steps as closures on free workers."""

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
from trainer_plugins.strategies.parameter_server.worker_pool import WorkerPool

# The name under which its mean is logged.
STALENESS = "staleness"


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
        return _added(
            carried,
            self._steps,
            results,
            staleness=(
                self._worker_pool.staleness.take() * num_steps,
                num_steps,
            ),
        )

    def trace(self, iterator: Any) -> None:
        """Traces what is scheduled; a worker makes it its own at first use."""
        with outside_graph(), self._worker_pool.strategy.scope():
            self._loop.get_concrete_function(
                tf.type_spec_from_value(iterator), tf.TensorSpec([], tf.int64)
            )

    def _measured(self, iterator: Any) -> Any:
        """Runs the step, and adds its staleness to that of all."""
        # Only a place in the layout: it is known at the end of a host loop.
        nothing = average(tf.constant(0.0), 0.0)
        with self._worker_pool.staleness.measured():
            return {**self._step(iterator), STALENESS: nothing}


def _added(
    carried: Sequence[Sums | None],
    steps: GraphLoop,
    results: list[Any],
    *,
    staleness: tuple[float, int] | None = None,
) -> list[Sums]:
    """Adds the results of closures to sums, step by step.

    Args:
        carried: see `Runner.__call__`.
        steps: what the closures ran.
        results: what they returned.
        staleness: its total and count over these steps, if they trained.
    """
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
        if staleness is not None:
            for columns, value in zip(
                layout.columns(STALENESS), staleness, strict=True
            ):
                row[columns] += value
        found.append(Sums(layout, row[np.newaxis, np.newaxis]))
    return found
