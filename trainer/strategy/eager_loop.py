"""`EagerLoop`: runs steps operation by operation, for a debugger."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import UserError, outside_graph
from trainer.step.reductions.sums import Layout, Sums, stacked
from trainer.strategy.graph_loop import GraphLoop, Step
from trainer.strategy.plugin import StrategyPlugin


def check_eager(plugin: StrategyPlugin) -> None:
    """Checks that steps can be run eagerly under a strategy.

    Raises:
        UserError: its replicas are threads or processes of their own.
    """
    # What this option says is what is needed: a single replica, in this
    # process.
    if not plugin.options.takes_stacks:
        raise UserError(
            f"run_eagerly: the replicas of the strategy {plugin.name!r} are "
            "threads, processes or programs of their own, which a debugger "
            "cannot step through. Set strategy to 'default' or 'one_device'; "
            "the mathematics is the same."
        )


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Lets functions of TensorFlow run as Python."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


class EagerLoop:
    """Runs a step of a single replica n times, as Python.

    Args:
        step: see `GraphLoop`.
        strategy: see `GraphLoop`.
        needs_graph: whether a graph has to be traced all the same: only that
            shows what a step touches beside the model, which a checkpoint has
            to hold.

    Attributes:
        layout: the positions of a step's results in the sums; known after the
            first step.
    """

    def __init__(
        self,
        step: Step,
        strategy: tf.distribute.Strategy,
        *,
        needs_graph: Callable[[], bool] = lambda: False,
    ) -> None:
        self._step = step
        self._strategy = strategy
        self._needs_graph = needs_graph
        self.layout: Layout | None = None

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `trainer.strategy.graph_loop.Runner`."""
        sums: Any = None
        with outside_graph(), eagerly():
            for _ in range(num_steps):
                results = tf.nest.map_structure(
                    self._first, self._step(iterator)
                )
                if self.layout is None:
                    self.layout = Layout(results)
                if sums is None:
                    sums = tf.convert_to_tensor(
                        stacked(carried, self.layout, 1)
                    )
                sums += self.layout.pack(results)
        assert self.layout is not None
        return [Sums(self.layout, sums, i) for i in range(len(carried))]

    def trace(self, iterator: Any) -> None:
        """Traces a graph only where a run saves; see the class.

        Raises:
            UserError: it does, and the step only runs as Python.
        """
        if not self._needs_graph():
            return
        traced = GraphLoop(self._step, self._strategy)
        with outside_graph():
            try:
                self.layout = traced.lay_out(iterator)
            except (AttributeError, NotImplementedError, TypeError) as error:
                why = str(error).partition("\n")[0]
                raise UserError(
                    "run_eagerly: a run that saves traces its step once, to "
                    "find all that a checkpoint must hold, and this step "
                    f"cannot be traced ({why}). Leave out the callback that "
                    "saves, or what only works eagerly."
                ) from error

    def _first(self, value: Any) -> Any:
        return self._strategy.experimental_local_results(value)[0]
