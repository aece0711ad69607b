"""The input of training, in the form that the compiled step takes."""

from typing import Any

from trainer.data import Batches, exact, feeder
from trainer.loop.rollback import without_skipped
from trainer.loop.run import Run
from trainer.step.forms import Form
from trainer.strategy.graph_loop import StackReader


def training_input(run: Run, batches: Batches, *, start: int) -> Any:
    """Makes what the train runner reads.

    Args:
        run: whose steps take it.
        batches: the training data. Batches that a guard has skipped are left
            out.
        start: the step that takes the first batch.
    """
    plugin = run.plugin
    wanted = without_skipped(
        batches, run.model_dir, by_step=plugin.options.batches_by_step
    )
    if run.spec.form is Form.XLA_STACK:
        return StackReader(wanted.stacks(start=start))
    pieces = feeder(
        wanted,
        start=start,
        num_replicas=plugin.num_replicas,
        micro=run.spec.accumulation_steps,
        fit=exact if plugin.options.static_shapes else None,
    )
    return plugin.distribute(pieces, training=True)
