"""The chief schedules steps on free workers, as closures."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import StartAgain, UserError, average
from trainer.plugin_api import (
    GraphLoop,
    MakeDataset,
    Step,
    Sums,
    graph_function,
    operations_of,
    outside_graph,
)
from trainer_plugins.control_plane.agent import Agent
from trainer_plugins.strategies import tensorflow_private as private
from trainer_plugins.strategies.parameter_server.counters import (
    StepCounts,
    with_staleness,
)
from trainer_plugins.strategies.parameter_server.step_ranges import StepRanges
from trainer_plugins.strategies.processes import ClusterStrategy

# How often the chief checks for lost servers while it waits for workers.
_POLL_SECONDS = 0.5
# The name under which its mean is logged.
_STALENESS = "staleness"

# Where the chief itself computes.
_HERE = "/job:chief/replica:0/task:0/device:CPU:0"


def _queue() -> tf.Tensor:
    """A worker's queue between its closure and its input, while traced."""
    # `tf.queue` would make it on the chief.
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.int64], shapes=[[3]], shared_name="named_batches"
    )


def _enqueue(named: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.QueueEnqueueV2(handle=_queue(), components=[named])


def _dequeue() -> tf.Tensor:
    (named,) = tf.raw_ops.QueueDequeueV2(
        handle=_queue(), component_types=[tf.int64]
    )
    return tf.ensure_shape(named, [3])


def _check_input(make: Callable[[], tf.data.Dataset]) -> None:
    """Checks that another process can make a dataset.

    Raises:
        UserError: it needs something that only this process has.
    """

    def traced() -> tf.Tensor:
        return tf.data.experimental.to_variant(make())

    with outside_graph():
        function = graph_function(traced).get_concrete_function()
    if any(one.dtype == tf.variant for one in function.captured_inputs):
        raise UserError(
            "The data is a tf.data.Dataset that this process has made, but the "
            "workers of parameter servers are different processes. Pass a "
            "function that makes it: Trainer(data=lambda split: ...)."
        )
    for operation in operations_of(function.graph):
        if "PyFunc" in operation.type:
            raise UserError(
                "The data runs Python code (PyDataset, from_generator, "
                "py_function or numpy_function), which workers of parameter "
                "servers cannot run. Use arrays, Examples or TensorFlow "
                "operations."
            )


class WorkerPool:
    """Schedules loops of steps on workers, and waits for them."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        agent: Agent,
        plugin: ClusterStrategy,
        counts: StepCounts,
        ranges: StepRanges,
    ) -> None:
        self.strategy = strategy
        self._agent = agent
        self._plugin = plugin
        self._counts = counts
        self._ranges = ranges
        # Numbers of the newest input, and of its next batch.
        self._input = self._next = 0
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
            strategy
        )

    @functools.cached_property
    def updates(self) -> tf.Variable:
        """The number of updates that the servers have applied in this run."""
        # On a server, where all workers count in the same variable.
        with self._plugin.scope():
            return tf.Variable(0, dtype=tf.int64, trainable=False)

    def distribute(self, make_dataset: MakeDataset) -> Any:
        """Returns an iterator over the batches that closures name."""
        self._input, self._next = self._input + 1, 0
        mine = self._input

        def put_back(named: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([_enqueue(named)]):
                return _dequeue()

        def next_range(_: Any) -> tuple[tf.Tensor, tf.Tensor]:
            # The input of an earlier call may still wait beside this one.
            (named,) = tf.while_loop(
                lambda named: named[0] != mine, put_back, [_dequeue()]
            )
            return named[1], named[2]

        def on_worker() -> tf.data.Dataset:
            # TensorFlow runs this on each worker when it joins, and again when
            # it rejoins. Not a distributed dataset, which would check in each
            # step whether there still is a batch.
            return make_dataset(range(1), next_range=next_range)

        _check_input(on_worker)
        return iter(self._coordinator.create_per_worker_dataset(on_worker))

    def train(
        self, loop: Callable[..., Any], iterator: Any, num_steps: int
    ) -> list[Any]:
        """Runs a number of steps, each counted once.

        Returns:
            The results of each call of the loop, as NumPy arrays.

        Raises:
            StartAgain: a parameter server is lost, and the variables with it.
        """
        # A worker that dies within these steps makes another one repeat its
        # range.
        before, losses = self._counts.values(), self._agent.losses
        self._ranges.begin(range(self._next, self._next + num_steps))
        self._next += num_steps
        self._run(loop, iterator)
        self._ranges.warn_of_slow()
        self._counts.correct(
            before,
            updates=self.updates,
            num_steps=num_steps,
            losses=self._agent.losses - losses,
        )
        # In the order of steps, not of finishing: the last bits of a sum depend
        # on it.
        return [found for _, found in sorted(self._ranges.results.items())]

    def _run(self, loop: Callable[..., Any], iterator: Any) -> None:
        """Runs a loop on free workers, once for each range of steps."""
        # The public `schedule` takes a graph, which cannot know its worker.
        cluster, ranges = self._coordinator._cluster, self._ranges

        def work(of_worker: Any) -> None:
            worker = private.dispatch_context().worker_index
            while (steps := ranges.take(worker)) is not None:
                named = self._input, steps.start, len(steps)
                try:
                    # Neither made there nor read from there: TensorFlow would
                    # keep Python's lock while it waits for the worker.
                    with tf.device(_HERE):
                        # As a tensor: each Python number would be traced.
                        given = tf.constant(named, tf.int64)
                    found = loop(of_worker, given)
                    with tf.device(_HERE):
                        found = tf.identity(found)
                    ranges.finish(worker, found.numpy())
                except BaseException:
                    ranges.give_back(worker)
                    raise

        with self._plugin.watched(), outside_graph():
            # So that an error cancels the closures of the other workers.
            loop = private.cancelable(loop, cluster.closure_queue)
            # Each worker stays until all steps are done.
            for _ in range(ranges.num_workers):
                cluster.schedule(work, args=(iterator,), kwargs=None)
            self._join()

    def _join(self) -> None:
        """Waits for the workers, unless a parameter server is lost."""
        # The public `join` has no time limit, and a closure whose variables
        # are lost is retried forever.
        queue = self._coordinator._cluster.closure_queue
        while not queue.wait(timeout=_POLL_SECONDS):
            if self._agent.end_reason is not None:
                raise StartAgain(self._agent.end_reason)


class Closures(GraphLoop):
    """Runs training steps on free workers."""

    def __init__(self, step: Step, worker_pool: WorkerPool) -> None:
        super().__init__(self._measured, worker_pool.strategy)
        self._worker_pool = worker_pool
        self._of_worker = step
        self._loop = graph_function(self._named_steps)

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `GraphLoop.__call__`."""
        results = self._worker_pool.train(
            self._traced_loop(iterator), iterator, num_steps
        )
        packing = self.packing
        assert packing is not None  # A worker has traced the step.
        found = []
        for sums in carried:
            row = packing.rows(sums.by_replica() if sums else {}, 1)[0]
            for of_step in itertools.chain.from_iterable(results):
                row += of_step
            found.append(Sums(packing, row[np.newaxis, np.newaxis]))
        return found

    def trace(self, iterator: Any) -> None:
        """Traces the loop; each worker gets its own copy at the first use."""
        self._traced_loop(iterator)

    def _traced_loop(self, iterator: Any) -> Any:
        # Of one worker's iterator, as TensorFlow's own closures have it.
        spec = private.parts_of(iterator)
        with outside_graph(), self._worker_pool.strategy.scope():
            return self._loop.get_concrete_function(
                spec, tf.TensorSpec([3], tf.int64)
            )

    def _named_steps(self, iterator: Any, named: tf.Tensor) -> tf.Tensor:
        """Runs the steps of a range: its input, its first step and how many."""
        with tf.device("CPU:0"):
            given = _enqueue(named)
        with tf.control_dependencies([given]):
            return self.each_step(iterator, named[2])

    def _measured(self, iterator: Any) -> Any:
        """Runs the step, and adds its staleness to the results."""
        results, staleness = with_staleness(
            lambda: self._of_worker(iterator), self._worker_pool.updates
        )
        return {**results, _STALENESS: average(staleness, 1.0)}
