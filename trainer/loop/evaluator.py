"""Evaluates the eval split under the run's strategy."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.data import Batches, feeder, padded
from trainer.data.dataset_batches import MOST_COUNTED
from trainer.errors import UserError
from trainer.step.eval_step import make_eval_step
from trainer.step.logs import Totals
from trainer.step.metrics.carried import EVAL
from trainer.step.spec import StepSpec
from trainer.step.trials.prepare import prepare
from trainer.strategy.eager_loop import EagerLoop
from trainer.strategy.graph_loop import Runner
from trainer.strategy.plugin import MakePieces, StrategyPlugin

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
    # Data of unknown length is counted no further than needed.
    batches.learn_length(steps or MOST_COUNTED)
    found = [n for n in (steps, batches.steps_per_epoch) if n is not None]
    if not found:
        raise UserError(
            "The data to measure is endless, or longer than has been counted: "
            f"set {name}, the number of batches."
        )
    return min(found)


class Interrupted(Exception):  # noqa: N818 - a request, not a defect
    """An evaluation was abandoned because the run has to leave."""


class Evaluator:
    """Measures the eval split; traced once, however often it is called.

    Args:
        spec: what the steps are made of.
        plugin: the strategy.
        has_to_leave: called between two graph calls: whether to abandon the
            evaluation.
        batch_events: called at each evaluation: what calls an event of the
            callbacks, if any of them looks at single batches.
    """

    def __init__(
        self,
        spec: StepSpec,
        plugin: StrategyPlugin,
        *,
        has_to_leave: Callable[[], bool],
        batch_events: Callable[[], Event | None],
    ) -> None:
        self._spec = spec
        self._plugin = plugin
        self._has_to_leave = has_to_leave
        self._batch_events = batch_events
        # What was measured last, and what makes its datasets.
        self._pieces: tuple[Batches, MakePieces] | None = None

    def __call__(self, steps: int | None = None) -> dict[str, float]:
        """Evaluates with the averaged weights, if there are any.

        Args:
            steps: how many batches; no more than one pass, which `None` means.

        Returns:
            Loss and metrics by name. Each example counts once, at its weight,
            however it was batched.

        Raises:
            UserError: the data is endless and `steps` is not given.
            Interrupted: the run has to leave.
        """
        # Once more from the beginning would count examples twice.
        steps = count_of(
            self._spec.batches("eval"),
            steps,
            name="steps, or run.eval_steps",
        )
        prepare(self._spec, training=False)
        iterator = self._input()
        totals = Totals(self._spec.parts.metrics, EVAL)
        # Carried states are in variables, which still hold the last evaluation.
        totals.reset()
        event = self._batch_events()
        per_call = _BATCHES_PER_CALL if event is None else 1
        with self._averaged_weights():
            for start in range(0, steps, per_call):
                # All processes agree on this in a collective, so all of them
                # call it at the same batch.
                if start and self._has_to_leave():
                    raise Interrupted
                count = min(per_call, steps - start)
                if event is not None:
                    event("on_test_batch_begin", start, {})
                (totals.sums,) = self.runner(iterator, count, [totals.sums])
                if event is not None:
                    # What is over a whole set is not known yet.
                    values = totals.values(whole_sets=False)
                    event("on_test_batch_end", start, values)
        values = totals.values()
        # What metrics have gathered may be large.
        totals.reset()
        return values

    def trace(self) -> None:
        """Builds the graph without evaluating."""
        prepare(self._spec, training=False)
        self.runner.trace(self._input())

    @functools.cached_property
    def runner(self) -> Runner:
        """The loop of evaluation steps."""
        if self._spec.run_eagerly:
            return EagerLoop(make_eval_step(self._spec), self._plugin.strategy)
        return self._plugin.runner(make_eval_step(self._spec), training=False)

    def _averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Puts the moving averages into the model while it is open."""
        ema = self._spec.parts.ema
        return contextlib.nullcontext() if ema is None else ema.swapped_in()

    def _input(self) -> Any:
        batches = self._spec.batches("eval")
        if self._pieces is None or self._pieces[0] is not batches:
            make = feeder(
                batches,
                start=0,
                num_replicas=self._plugin.num_replicas,
                micro=1,
                # Padded, while training drops a short batch: here each example
                # counts.
                fit=padded if self._plugin.options.static_shapes else None,
            )
            self._pieces = batches, _made_once(make)
        return self._plugin.distribute(self._pieces[1], training=False)


def _made_once(make_pieces: MakePieces) -> MakePieces:
    """Keeps datasets: to trace one takes longer than to read a few batches."""
    made: dict[Any, Any] = {}

    def pieces(replicas: range, **options: Any) -> Any:
        # A dataset that is made on a worker is part of that worker's graph.
        if not tf.executing_eagerly():
            return make_pieces(replicas, **options)
        key = replicas, *sorted(options.items())
        if key not in made:
            made[key] = make_pieces(replicas, **options)
        return made[key]

    return pieces


class OtherEvaluations:
    """Evaluations of other data than the run's eval split.

    Data of one structure and batch size shares a traced graph.

    Args:
        plugin: the strategy.
        **options: `has_to_leave` and `batch_events`, see `Evaluator`.
    """

    def __init__(self, plugin: StrategyPlugin, **options: Any) -> None:
        self._plugin = plugin
        self._options = options
        self._made: dict[Any, tuple[list[Batches], Evaluator]] = {}

    def __call__(
        self, spec: StepSpec, batches: Batches, steps: int | None
    ) -> dict[str, float]:
        """Measures the batches; see `Evaluator.__call__`."""
        return self._evaluator(spec, batches)(steps)

    def trace(self, spec: StepSpec, batches: Batches) -> None:
        """Builds the graph without evaluating."""
        self._evaluator(spec, batches).trace()

    def _evaluator(self, spec: StepSpec, batches: Batches) -> Evaluator:
        key = id(spec.tried), str(batches.element_spec), batches.batch_size
        if key not in self._made:
            now: list[Batches] = []
            own = dataclasses.replace(spec, batches=lambda split: now[0])
            self._made[key] = (
                now,
                Evaluator(own, self._plugin, **self._options),
            )
        now, evaluator = self._made[key]
        now[:] = [batches]
        return evaluator
