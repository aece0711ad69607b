"""Evaluates batches under the strategy of a run."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from trainer.data.batches import Batches
from trainer.data.feeding import feeder, padded
from trainer.errors import UserError
from trainer.step.logs import Interval
from trainer.step.metrics.states import EVAL
from trainer.step.prepare import prepare
from trainer.step.spec import StepSpec
from trainer.step.train_step import make_eval_step
from trainer.strategy.graph_loop import EagerLoop, GraphLoop
from trainer.strategy.plugin import MakeDataset, StrategyPlugin

# Batches in one graph call: between two calls a run may leave, so that it does
# not have to wait for the whole evaluation.
_BATCHES_PER_CALL = 100

# Calls an event of callbacks, by its name and with its arguments.
Event: TypeAlias = Callable[..., None]


def count_of(batches: Batches, steps: int | None, *, name: str) -> int:
    """How many batches are measured: what is asked for, but at most all.

    Args:
        batches: what is measured.
        steps: what is asked for; `None` means all.
        name: of that argument, for the message.

    Raises:
        UserError: the data has no end, and `steps` is not given.
    """
    # As Keras does: it may be set to try a program out.
    most = keras.config.max_steps_per_epoch()
    asked = [n for n in (steps, most) if n is not None]
    # Data of unknown length is counted no further than needed.
    batches.learn_length(min(asked, default=None))
    found = [n for n in (*asked, batches.steps_per_epoch) if n is not None]
    if not found:
        raise UserError(
            "The data to measure is endless, or longer than has been counted: "
            f"set {name}, the number of batches."
        )
    return min(found)


class Interrupted(Exception):  # noqa: N818 - a request, not a defect
    """An evaluation was abandoned because the run has to leave."""


class Evaluator:
    """Measures batches; traced once for all data of one structure and size.

    Args:
        spec: what the steps are made of.
        plugin: the strategy.
    """

    def __init__(self, spec: StepSpec, plugin: StrategyPlugin) -> None:
        self._spec = dataclasses.replace(spec, batches=lambda _: self._batches)
        self._plugin = plugin
        self._batches: Batches
        self._make_dataset: MakeDataset | None = None

    def take(self, batches: Batches) -> None:
        """Measures these batches from now on."""
        if self._make_dataset is not None and self._batches is batches:
            return
        self._batches = batches
        make = feeder(
            batches,
            start=0,
            num_replicas=self._plugin.num_replicas,
            micro=1,
            # Padded, while training drops a short batch: here each example
            # counts.
            fit=padded if self._plugin.options.static_shapes else None,
        )
        # Kept, as to trace a dataset takes longer than to read a few batches.
        kept = functools.cache(make)

        def dataset(replicas: range, **options: Any) -> Any:
            # One that is made on a worker is part of that worker's graph.
            eager = tf.executing_eagerly()
            return (kept if eager else make)(replicas, **options)

        self._make_dataset = dataset

    def __call__(
        self,
        steps: int | None = None,
        *,
        event: Event | None = None,
        execution: int = 1,
        has_to_leave: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Evaluates with the averaged weights, if there are any.

        Args:
            steps: how many batches; no more than one pass, which `None` means.
            event: calls an event of the callbacks, if any of them looks at
                single batches.
            execution: the batches for which Keras calls callbacks once.
            has_to_leave: called between two graph calls: whether to abandon
                the evaluation.

        Returns:
            Loss and metrics by name. Each example counts once, at its weight,
            however it was batched.

        Raises:
            UserError: the data is endless and `steps` is not given.
            Interrupted: the run has to leave.
        """
        # Once more from the beginning would count examples twice.
        steps = count_of(self._batches, steps, name="steps, or run.eval_steps")
        prepare(self._spec, training=False)
        iterator = self._input()
        interval = Interval(self._spec.parts.metrics, EVAL)
        # An evaluation that was abandoned has left states of metrics.
        interval.reset()
        self._spec.parts.metrics.reset_kept()
        per_call = _BATCHES_PER_CALL if event is None else execution
        model = self._spec.model
        model.stop_evaluating = False
        with self._averaged_weights():
            for start in range(0, steps, per_call):
                # All processes agree on this in a collective, so all of them
                # call it at the same batch.
                if start and has_to_leave():
                    raise Interrupted
                count = min(per_call, steps - start)
                if event is not None:
                    event("on_test_batch_begin", start, {})
                (interval.sums,) = self.runner(iterator, count, [interval.sums])
                if event is not None:
                    # What is over a whole set is not known yet.
                    values = interval.values(whole_sets=False)
                    event("on_test_batch_end", start + execution - 1, values)
                    if self._plugin.any_process(bool(model.stop_evaluating)):
                        break
        values = interval.values()
        # What metrics have gathered may be large.
        interval.reset()
        return values

    def trace(self) -> None:
        """Builds the graph without evaluating."""
        prepare(self._spec, training=False)
        self.runner.trace(self._input())

    @functools.cached_property
    def runner(self) -> GraphLoop:
        """The loop of evaluation steps."""
        if self._spec.run_eagerly:
            return EagerLoop(make_eval_step(self._spec), self._plugin.strategy)
        return self._plugin.runner(make_eval_step(self._spec), training=False)

    def _averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Puts the moving averages into the model while it is open."""
        ema = self._spec.parts.ema
        return contextlib.nullcontext() if ema is None else ema.swapped_in()

    def _input(self) -> Any:
        assert self._make_dataset is not None
        return self._plugin.distribute(self._make_dataset, training=False)
