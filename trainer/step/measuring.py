"""What a replica's step measures, completed to what the step returns."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.step.gradients import reduce_sum
from trainer.step.logs import StepLogs
from trainer.step.reductions.slots import Slots, slot_rows

if TYPE_CHECKING:
    from trainer.trainer import Trainer


@contextlib.contextmanager
def measuring(
    trainer: "Trainer",
    batch: Any,
    *,
    micro: tf.Tensor | int = 0,
    training: bool = True,
) -> Iterator[Callable[[StepLogs], StepLogs]]:
    """Surrounds the step on a replica's piece of the batch.

    Yields:
        A function that adds to the step's results what layers have measured;
        to be called afterwards.
    """
    metrics = trainer.parts.metrics
    with metrics.in_layers.listening() as noted:
        yield lambda logs: _complete(
            trainer,
            logs | metrics.logs(metrics.layer_calls(noted)),
            batch,
            micro=micro,
            training=training,
        )


def carry(
    trainer: "Trainer", logs: StepLogs, kept_for: Sequence[str]
) -> StepLogs:
    """Updates the metrics that do not add up, in cross-replica context.

    Returns:
        The rest of the step's results.
    """
    strategy = trainer.plugin.strategy

    def reduce(values: Any) -> Any:
        if not trainer.plugin.reduces_logs:
            values = strategy.run(reduce_sum, args=(values,))
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], values
        )

    return trainer.parts.metrics.carry(logs, kept_for, reduce)


def examples_in_a_slot(
    trainer: "Trainer",
    *,
    training: bool,
    why: str = (
        "The state of a metric does not add up, so replicas must exchange "
        "their batches"
    ),
) -> int:
    """The most examples that a replica gets of a (micro-)batch.

    Args:
        trainer: whose batches they are.
        training: of training or of evaluation.
        why: what needs the number, for the error message.

    Raises:
        UserError: the data does not say.
    """
    batch_size = trainer.batches("train" if training else "eval").batch_size
    if batch_size is None:
        raise UserError(
            f"{why}, and the data does not say how many a batch holds: set its "
            "batch_size."
        )
    return slot_rows(
        batch_size,
        micro=trainer.accumulation_steps if training else 1,
        num_replicas=trainer.plugin.num_replicas,
    )


def _complete(
    trainer: "Trainer",
    logs: StepLogs,
    batch: Any,
    *,
    micro: tf.Tensor | int,
    training: bool,
) -> StepLogs:
    metrics = trainer.parts.metrics
    if not metrics.has_carried:
        return logs
    replicas = trainer.plugin.num_replicas
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group if context else 0
    micro_batches = trainer.accumulation_steps if training else 1
    slots = Slots(
        number=micro * replicas + replica,
        pieces=replicas * micro_batches,
        rows=examples_in_a_slot(trainer, training=training),
    )
    return metrics.as_pieces(logs, batch, slots)
