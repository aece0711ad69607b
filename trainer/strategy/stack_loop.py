"""`StackLoop`: many steps as one XLA program, over a stack of batches."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.data.stacks import Rows, Stack, Stacks
from trainer.errors import outside_graph
from trainer.runtime.graph import graph_function, repeat
from trainer.step.reductions.sums import Layout, Sums, stacked
from trainer.step.timed_input import OneOfStack
from trainer.strategy.graph_loop import Step


class StackReader:
    """Hands out the batches of stacks, as many as a call has steps.

    Args:
        stacks: of the batches, from the first one to hand out.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._spec = stacks.dataset.element_spec.batches
        self._columns = stacks.columns
        self._placed: Any = None
        self._stacks = iter(stacks.dataset)
        self._batches: Any = None
        self._next = self._end = 0

    def spec(self) -> Any:
        """What the batches of a stack look like."""
        return self._rows_of(self._spec, tf.TensorSpec.from_tensor)

    def take(self, most: int) -> tuple[Any, int, int, float]:
        """The next batches, all from one stack.

        Args:
            most: how many steps want one, at least one.

        Returns:
            A stack's batches, or `Rows` on the device of the caller; the
            first one to use, the one after the last to use, and the seconds
            that it took to get them.
        """
        begin = time.perf_counter()
        while self._next == self._end:
            stack: Stack = next(self._stacks)
            self._batches = self._rows_of(stack.batches, lambda part: part)
            self._next, self._end = 0, int(stack.count)
        waited = time.perf_counter() - begin
        first = self._next
        self._next = min(first + most, self._end)
        return self._batches, first, self._next, waited

    def _rows_of(self, held: Any, as_part: Callable[[Any], Any]) -> Any:
        """What a stack holds, with the columns that it numbers the rows of."""
        if self._columns is None:
            return held
        if self._placed is None:
            # On the device of the step, once; where they are there already,
            # nothing is copied.
            self._placed = tf.nest.map_structure(tf.identity, self._columns)
        return Rows(tf.nest.map_structure(as_part, self._placed), held)


class StackLoop:
    """Runs a step n times, in one XLA program for each stack of batches.

    The program's loop begins and ends where it is told, so a step is the same
    program wherever a call begins or ends: no result depends on it. For a
    single replica.

    Args:
        step: see `trainer.strategy.graph_loop.Step`.
        device: the replica's.

    Attributes:
        layout: see `trainer.strategy.graph_loop.GraphLoop`.
    """

    def __init__(self, step: Step, device: str) -> None:
        self._device = device
        self._step = graph_function(
            lambda batches, index, waited: step(
                OneOfStack(batches, index, waited)
            )
        )
        self._loop = graph_function(self._many_steps, jit_compile=True)
        self.layout: Layout | None = None
        self._traced: Any = None

    @property
    def step_graph(self) -> tf.Graph:
        """See `GraphLoop.step_graph`."""
        return self._traced.graph

    def __call__(
        self,
        iterator: StackReader,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `trainer.strategy.graph_loop.Runner`."""
        with outside_graph(), tf.device(self._device):
            layout = self.layout or self._lay_out(iterator)
            sums = tf.convert_to_tensor(stacked(carried, layout, 1))
            while num_steps:
                batches, begin, end, waited = iterator.take(num_steps)
                sums = self._loop(
                    batches,
                    tf.constant([begin, end]),
                    # Waited for once, and so counted once.
                    tf.constant(waited, tf.float32),
                    sums,
                )
                num_steps -= end - begin
            return [Sums(layout, sums, i) for i in range(len(carried))]

    def trace(self, iterator: StackReader) -> None:
        """See `trainer.strategy.graph_loop.Runner`."""
        with outside_graph(), tf.device(self._device):
            layout = self.layout or self._lay_out(iterator)
            self._loop.get_concrete_function(
                iterator.spec(),
                tf.TensorSpec([2], tf.int32),
                tf.TensorSpec([], tf.float32),
                tf.TensorSpec([None, 1, layout.size], tf.float64),
            )

    def _many_steps(
        self,
        batches: Any,
        bounds: tf.Tensor,
        waited: tf.Tensor,
        carried: tf.Tensor,
    ) -> tf.Tensor:
        """The loop itself; only called while it is traced.

        Args:
            batches: a structure of tensors of shape `[size, batch, ...]`, or
                `Rows`.
            bounds: int32 of shape `[2]`: the first batch, and the one after
                the last.
            waited: float32 scalar, seconds.
            carried: float64 of shape `[sums, 1, layout.size]`.

        Returns:
            The new sums, shaped like `carried`.
        """
        layout = self.layout
        assert layout is not None

        def one_more(number: tf.Tensor, sums: tf.Tensor) -> tf.Tensor:
            at_first = tf.where(number == bounds[0], waited, 0.0)
            results = self._step(batches, number, at_first)
            return sums + layout.pack(results)

        return repeat(one_more, carried, start=bounds[0], stop=bounds[1])

    def _lay_out(self, iterator: StackReader) -> Layout:
        self._traced = self._step.get_concrete_function(
            iterator.spec(),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.float32),
        )
        self.layout = Layout(self._traced.structured_outputs)
        return self.layout
