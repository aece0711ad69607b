"""Runs many steps in one call: as a graph, as one XLA program, as Python."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from trainer.data.stacks import Rows, StackReader
from trainer.errors import outside_graph
from trainer.runtime.graph import graph_function, repeat
from trainer.step.gradients import among_zeros, reduce_sum
from trainer.step.reductions.sums import Packing, Sums, stacked
from trainer.step.timed_input import Given

# One optimizer or evaluation step in cross-replica context: takes the
# iterator, returns a structure of per-replica tensors that add up over steps.
Step = Callable[[Any], Any]


class GraphLoop:
    """Runs a step n times in one `tf.function`, n being a tensor.

    Each replica adds up its own results, over all steps and calls: no step
    waits for a metric.

    Args:
        step: see `Step`.
        strategy: that of the step.
        around: makes the context in which each call runs, such as a time limit.

    Attributes:
        packing: of a step's results; known once the step has been traced.
    """

    def __init__(
        self,
        step: Step,
        strategy: tf.distribute.Strategy,
        *,
        around: Callable[
            [], contextlib.AbstractContextManager[Any]
        ] = contextlib.nullcontext,
    ) -> None:
        self._strategy = strategy
        self._around = around
        self._given = step
        # A function of its own within the loop, so that it is traced once, also
        # to find out what it returns.
        self._step = graph_function(self._packed)
        self._loop = graph_function(self.many_steps)
        self.packing: Packing | None = None
        self._traced: Any = None

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """Runs `num_steps` steps.

        Args:
            iterator: what `StrategyPlugin.distribute` returned.
            num_steps: how many steps, at least one.
            carried: sums that earlier calls have returned; `None` starts a
                new one.

        Returns:
            Each of these sums with the results of the steps added, step by
            step, in order.
        """
        with self._around(), outside_graph():
            packing = self.packing or self.trace_step(iterator)
            before = stacked(carried, packing, self._num_rows)
            sums = self._run(iterator, num_steps, tf.convert_to_tensor(before))
            return [Sums(packing, sums, i) for i in range(len(carried))]

    def _run(self, iterator: Any, num_steps: int, sums: tf.Tensor) -> tf.Tensor:
        """Adds steps to sums, see `many_steps`."""
        # A tensor: a Python number would be traced once per value.
        return self._loop(iterator, tf.constant(num_steps, tf.int64), sums)

    def trace(self, iterator: Any) -> None:
        """Builds the graph without running a step."""
        with outside_graph():
            packing = self.trace_step(iterator)
            # [any number of sums, replicas, size]: training keeps several.
            shape = [None, self._num_rows, packing.size]
            sums = tf.TensorSpec(shape, tf.float64)
            self._loop.get_concrete_function(*self._loop_spec(iterator), sums)

    def _step_spec(self, iterator: Any) -> tuple[Any, ...]:
        """What `_step` takes."""
        return (iterator,)

    def _loop_spec(self, iterator: Any) -> tuple[Any, ...]:
        """What `_loop` takes before sums."""
        return iterator, tf.TensorSpec([], tf.int64)

    @property
    def traces(self) -> int:
        """How often the loop was traced; more than once wastes time."""
        return int(self._loop.experimental_get_tracing_count())

    @property
    def step_graph(self) -> tf.Graph:
        """The graph of one step, which must have been traced."""
        return self._traced.graph

    def many_steps(
        self, iterator: Any, num_steps: tf.Tensor, carried: tf.Tensor
    ) -> tf.Tensor:
        """The loop itself; only called while it is traced.

        Args:
            iterator: see `GraphLoop.__call__`.
            num_steps: int64 scalar.
            carried: float64 of shape `[sums, replicas, packing.size]`.

        Returns:
            The new sums, shaped like `carried`, equal in all processes.
        """

        def add(sums: tf.Tensor, results: tf.Tensor) -> tf.Tensor:
            return sums + results

        def one_more(_: tf.Tensor, sums: Any) -> Any:
            return self._strategy.run(add, args=(sums, self._step(iterator)))

        # Within the loop each replica carries only its own row; the rows meet
        # once, at the end.
        sums = self._strategy.run(_own_row, args=(carried,))
        sums = repeat(one_more, sums, stop=num_steps)
        return self._first(self._strategy.run(_all_rows, args=(sums,)))

    def each_step(self, iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        """Runs steps of a single replica; only called while traced.

        Returns:
            The results of each: float64 of shape `[num_steps, packing.size]`.
        """
        packing = self.packing or self.trace_step(iterator)
        count = tf.cast(num_steps, tf.int32)
        # All results, not their sum: the coordinator adds them up in order.
        results = tf.TensorArray(
            tf.float64, count, element_shape=[packing.size]
        )

        def one_more(i: tf.Tensor, results: tf.TensorArray) -> tf.TensorArray:
            return results.write(i, self._first(self._step(iterator)))

        return repeat(one_more, results, stop=count).stack()

    def trace_step(self, iterator: Any) -> Packing:
        """Traces the step, which shows what it returns."""
        spec = self._step_spec(iterator)
        self._traced = self._step.get_concrete_function(*spec)
        assert self.packing is not None
        return self.packing

    def _packed(self, iterator: Any) -> Any:
        """The step's results as one vector per replica."""
        results = self._given(iterator)
        if self.packing is None:
            self.packing = Packing(tf.nest.map_structure(self._first, results))
        return self._pack(results)

    def _pack(self, results: Any) -> Any:
        assert self.packing is not None
        # On the replicas, and before the function returns them: what it returns
        # goes by way of the first device.
        return self._strategy.run(self.packing.pack, args=(results,))

    @property
    def _num_rows(self) -> int:
        """How many replicas add up their own results."""
        return int(self._strategy.num_replicas_in_sync)

    def _first(self, value: Any) -> Any:
        """One replica's part of a per-replica value."""
        return self._strategy.experimental_local_results(value)[0]


def _own_row(carried: tf.Tensor) -> tf.Tensor:
    """This replica's sums: `[sums, size]`."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return carried[:, 0]
    return tf.gather(carried, context.replica_id_in_sync_group, axis=1)


def _all_rows(sums: tf.Tensor) -> tf.Tensor:
    """All replicas' sums: `[sums, replicas, size]`, equal on all of them."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    if count == 1:
        return sums[:, tf.newaxis]
    # To each replica's sum only zeros are added, so no bit of it changes.
    own = among_zeros(sums, context.replica_id_in_sync_group, count)
    # [replicas, sums, size] -> [sums, replicas, size]
    return tf.transpose(reduce_sum(own), [1, 0, 2])


class StackLoop(GraphLoop):
    """Runs a step n times, in one XLA program for each stack of batches.

    The program's loop ends where it is told, so a step is the same program
    wherever a call ends: no result depends on it. For a single replica.

    Args:
        step: see `Step`.
        strategy: of that replica.
        device: where it is.
    """

    def __init__(
        self, step: Step, strategy: tf.distribute.Strategy, device: str
    ) -> None:
        super().__init__(
            step, strategy, around=functools.partial(tf.device, device)
        )
        self._step = graph_function(
            lambda rows, index: self._packed(Given([rows.batch(index)]))
        )
        self._loop = graph_function(self.many_steps, jit_compile=True)

    def _run(
        self, iterator: StackReader, num_steps: int, sums: tf.Tensor
    ) -> tf.Tensor:
        while num_steps:
            rows, count = iterator.take(num_steps)
            sums = self._loop(rows, tf.constant(count), sums)
            num_steps -= count
        return sums

    def trace(self, iterator: StackReader) -> None:
        """See `GraphLoop.trace`."""
        with self._around():
            super().trace(iterator)

    def _step_spec(self, iterator: StackReader) -> tuple[Any, ...]:
        return iterator.spec(), tf.TensorSpec([], tf.int32)

    _loop_spec = _step_spec

    def many_steps(
        self, iterator: Rows, num_steps: tf.Tensor, carried: tf.Tensor
    ) -> tf.Tensor:
        """See `GraphLoop.many_steps`; the first batches of a stack."""

        def one_more(number: tf.Tensor, sums: tf.Tensor) -> tf.Tensor:
            return sums + self._step(iterator, number)

        return repeat(one_more, carried, stop=num_steps)


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Lets functions of TensorFlow run as Python."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


class EagerLoop(GraphLoop):
    """Runs a step of a single replica n times, as Python."""

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `GraphLoop.__call__`."""
        with outside_graph(), eagerly():
            # The first step shows what there is to add up.
            results = [self._step(iterator) for _ in range(num_steps)]
            assert self.packing is not None
            sums = tf.convert_to_tensor(stacked(carried, self.packing, 1))
            for one in results:
                sums += one
        return [Sums(self.packing, sums, i) for i in range(len(carried))]

    def trace(self, iterator: Any) -> None:
        """Does nothing: a step may only work as Python."""
