"""Runs all trials on the first batch, before a step is traced."""

import functools

from trainer.step.context import step_context
from trainer.step.spec import StepSpec
from trainer.step.trials.layers import prepare_layers
from trainer.step.trials.losses import prepare_losses
from trainer.step.trials.metrics import prepare_metrics
from trainer.step.trials.trial import first_batch


def prepare(spec: StepSpec, *, training: bool) -> None:
    """Tries losses, layers and metrics whose behaviour is not known.

    The first batch is read at most once, and only if something must be tried.
    All processes of a run call this at the same time.

    Args:
        spec: what the step is made of, perhaps restored.
        training: whether to train or only to evaluate.

    Raises:
        UserError: one of them cannot be used under this strategy.
    """
    batch = functools.cache(lambda: first_batch(spec, training=training))
    # What research code logs while it is tried is of no step.
    with step_context.within(logged={}):
        prepare_losses(spec, batch, training=training)
        prepare_layers(spec, batch, training=training)
        prepare_metrics(spec, batch, training=training)
