"""Evaluates the eval split under the run's strategy."""

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from trainer.data import feeder, padded
from trainer.errors import UserError
from trainer.step.eval_step import make_eval_step
from trainer.step.logs import Totals
from trainer.step.metrics.carried import EVAL
from trainer.step.trials.prepare import prepare
from trainer.strategy.plugin import Runner

if TYPE_CHECKING:
    from trainer.trainer import Trainer

# Batches in one graph call: a run that has to leave need not wait long.
_BATCHES_PER_CALL = 100


class Interrupted(Exception):  # noqa: N818 - a request, not a defect
    """An evaluation was given up because the run has to leave."""


class Evaluator:
    """Measures the eval split; traced once, whatever it is called for.

    Args:
        trainer: whose model, data and strategy are used.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer

    def __call__(self, steps: int | None = None) -> dict[str, float]:
        """Evaluates with the averaged weights, if there are any.

        Args:
            steps: how many batches; `None` means one pass.

        Returns:
            Loss and metrics by name. Each example counts once, at its weight,
            however it was batched.

        Raises:
            UserError: the data is endless and `steps` is not given.
            Interrupted: the loop around it has to leave.
        """
        trainer = self._trainer
        batches = trainer.batches("eval")
        steps = steps or batches.steps_per_epoch
        if steps is None:
            raise UserError(
                "The eval data is endless, or longer than anybody has counted: "
                "set eval_steps."
            )
        prepare(self._trainer.spec, training=False)
        iterator = self._input()
        totals = Totals(trainer.parts.metrics, EVAL)
        totals.reset()
        loop = trainer.loop
        with self.averaged_weights():
            for start in range(0, steps, _BATCHES_PER_CALL):
                if start and loop and loop.reports.has_to_leave():
                    raise Interrupted
                count = min(_BATCHES_PER_CALL, steps - start)
                (totals.sums,) = self._runner(iterator, count, [totals.sums])
        return totals.values()

    def trace(self) -> None:
        """Builds the graph without evaluating."""
        prepare(self._trainer.spec, training=False)
        self._runner.trace(self._input())

    def averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Puts the moving averages into the model while it is open."""
        ema = self._trainer.parts.ema
        return contextlib.nullcontext() if ema is None else ema.swapped_in()

    def _input(self) -> Any:
        plugin = self._trainer.plugin
        pieces = feeder(
            self._trainer.batches("eval"),
            start=0,
            num_replicas=plugin.num_replicas,
            micro=1,
            fit=padded if plugin.options.static_shapes else None,
        )
        return plugin.distribute(pieces, training=False)

    @functools.cached_property
    def _runner(self) -> Runner:
        return self._trainer.plugin.runner(
            make_eval_step(self._trainer.spec), training=False
        )
