"""`GraphLoop`: runs many steps in one graph call."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from trainer.errors import outside_graph
from trainer.runtime.graph import graph_function, repeat
from trainer.step.gradients import among_zeros, reduce_sum
from trainer.step.reductions.sums import Layout, Sums, stacked

# One optimizer or evaluation step in cross-replica context: takes the
# iterator, returns a structure of per-replica tensors that add up over steps.
Step = Callable[[Any], Any]


class Runner(Protocol):
    """Runs many steps in one call."""

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

    def trace(self, iterator: Any) -> None:
        """Builds the graph without running a step."""


class GraphLoop:
    """Runs a step n times in one `tf.function`, n being a tensor.

    Each replica adds up its own results, over all steps and calls: no step
    waits for a metric.

    Attributes:
        layout: the positions of a step's results in the sums; known once the
            step has been traced.
    """

    def __init__(self, step: Step, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._given = step
        # A function of its own within the loop, so that it is traced once, also
        # to find out what it returns.
        self._step = graph_function(self._packed)
        self._loop = graph_function(self.many_steps)
        self.layout: Layout | None = None
        self._traced: Any = None

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `Runner.__call__`."""
        with outside_graph():
            layout = self.layout or self.lay_out(iterator)
            sums = self._loop(
                iterator,
                # A tensor: a Python number would be traced once per value.
                tf.constant(num_steps, tf.int64),
                tf.convert_to_tensor(stacked(carried, layout, self._num_rows)),
            )
            return [Sums(layout, sums, i) for i in range(len(carried))]

    def trace(self, iterator: Any) -> None:
        """See `Runner.trace`."""
        with outside_graph():
            layout = self.lay_out(iterator)
            self._loop.get_concrete_function(
                iterator,
                tf.constant(1, tf.int64),
                # [any number of sums, replicas, size]: training keeps several.
                tf.TensorSpec([None, self._num_rows, layout.size], tf.float64),
            )

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
            iterator: see `Runner.__call__`.
            num_steps: int64 scalar.
            carried: float64 of shape `[sums, replicas, layout.size]`.

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
            The results of each: float64 of shape `[num_steps, layout.size]`.
        """
        layout = self.layout or self.lay_out(iterator)
        count = tf.cast(num_steps, tf.int32)
        # All results, not their sum: the coordinator adds them up in order.
        results = tf.TensorArray(tf.float64, count, element_shape=[layout.size])

        def one_more(i: tf.Tensor, results: tf.TensorArray) -> tf.TensorArray:
            return results.write(i, self._first(self._step(iterator)))

        return repeat(one_more, results, stop=count).stack()

    def lay_out(self, iterator: Any) -> Layout:
        """Traces the step, and lays out what it returns."""
        self._traced = self._step.get_concrete_function(iterator)
        assert self.layout is not None
        return self.layout

    def _packed(self, iterator: Any) -> Any:
        """The step's results as one vector per replica."""
        results = self._given(iterator)
        if self.layout is None:
            self.layout = Layout(tf.nest.map_structure(self._first, results))
        return self._pack(results)

    def _pack(self, results: Any) -> Any:
        assert self.layout is not None
        # On the replicas, and before the function returns them: what it returns
        # goes by way of the first device.
        return self._strategy.run(self.layout.pack, args=(results,))

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
