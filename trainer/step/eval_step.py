"""One evaluation step, from the input iterator to summed results."""

from collections.abc import Callable
from typing import Any

from trainer.data.feeding import Padded
from trainer.runtime.graph import converted
from trainer.step.keras import untracked
from trainer.step.logs import StepLogs
from trainer.step.measuring import carry, in_step, warn_of_unmeasured
from trainer.step.metrics.states import EVAL
from trainer.step.replica_batch import weighted
from trainer.step.spec import StepSpec

# Keeps the random numbers of evaluation apart from those of training steps,
# which have the same step numbers.
_STREAM = 1


def make_eval_step(spec: StepSpec) -> Callable[[Any], StepLogs]:
    """`Trainer.eval_step` on each replica, as a function of the iterator.

    Under a strategy with static shapes a batch is always `(x, y,
    sample_weight)`, whatever the data yields: padding has weight zero.
    """
    parts, strategy = spec.parts, spec.plugin.strategy

    def replica_step(batch: Any) -> StepLogs:
        if isinstance(batch, Padded):
            batch = weighted(batch)
        with in_step(spec, batch, stream=_STREAM, training=False) as complete:
            logs = converted(spec.methods.eval_step)(batch)
            if spec.has_own("eval_step"):
                warn_of_unmeasured(spec, logs, training=False)
            return complete(logs)

    # A named function, not a lambda: TPU clusters are named after it.
    def eval_step(iterator: Any) -> StepLogs:
        spec.bind()
        # What the graph has captured before the step is the strategy's, such as
        # the input iterator; everything after it is the step's and is checked
        # below.
        before = untracked.captured()
        logs = strategy.run(replica_step, args=(next(iterator),))
        logs = carry(spec, logs, (EVAL,))
        untracked.check(
            parts.untracked,
            parts.model,
            before,
            known=parts.metrics.carried_variables,
        )
        return logs

    return eval_step
