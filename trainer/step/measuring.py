"""The logs of a step: what a replica measures, made to add up."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.step.gradients import reduce_sum
from trainer.step.keras.private import all_layers
from trainer.step.logs import DATA_WAIT, EXAMPLES, MISSES, StepLogs
from trainer.step.lookups import position
from trainer.step.noted import noting
from trainer.step.padding import real_rows
from trainer.step.pieces import Piece
from trainer.step.reductions.average import Average, average
from trainer.step.reductions.slots import Slots, slot_rows
from trainer.step.spec import StepSpec

_LOW = 2**32 - 1


def replica_logs(
    spec: StepSpec,
    logs: StepLogs,
    piece: Piece,
    waited: tf.Tensor | None = None,
) -> StepLogs:
    """Completes what a step returned, so that it adds up.

    Args:
        spec: what the step is made of.
        logs: as research code returned them: a plain scalar is averaged over
            replicas and steps.
        piece: the replica's piece of the batch.
        waited: seconds for data, in which all replicas waited.
    """
    complete: StepLogs = {}
    for name, value in logs.items():
        value = average(value) if isinstance(value, tf.Tensor) else value
        if isinstance(value, Average):
            complete[name] = piece.or_nothing(value)
        else:
            complete[name] = piece.or_zeros(value)
    complete[EXAMPLES] = average(piece.examples, 0.0)
    if waited is not None:
        # Replicas wait together, and what they log is summed.
        part = waited / spec.plugin.num_replicas
        complete[DATA_WAIT] = average(part, 0.0)
    return reduce_sum(complete) if spec.options.reduces_logs else complete


@contextlib.contextmanager
def measuring(
    spec: StepSpec,
    batch: Any,
    *,
    micro: tf.Tensor | int = 0,
    training: bool = True,
) -> Iterator[Callable[[StepLogs], StepLogs]]:
    """Surrounds the step on a replica's piece of the batch.

    Yields:
        A function that adds to the step's results what layers have measured,
        and what `trainer.log` was given. Call it within this context, after
        the step.
    """
    metrics = spec.parts.metrics
    replicas = spec.plugin.num_replicas
    pieces = replicas * (spec.accumulation_steps if training else 1)
    before = position()
    with metrics.in_layers.listening() as noted, noting() as notes:

        def complete(logs: StepLogs) -> StepLogs:
            logged = notes.averages(
                logs,
                rows=tf.nest.flatten(batch)[0].shape[0],
                real=real_rows(batch),
                pieces=pieces,
            )
            completed = _complete(
                spec,
                logs | logged | metrics.logs(metrics.layer_calls(noted)),
                batch,
                micro=micro,
                training=training,
            )
            if training:
                layers = {layer.name for layer in all_layers(spec.model)}
                misses = spec.lookups.misses(since=before, layers=layers)
                if misses is not None and spec.form.uses_xla:
                    completed[MISSES] = average(misses, 0.0)
            return completed

        yield complete


def warn_of_unmeasured(
    spec: StepSpec, logs: StepLogs, *, training: bool
) -> None:
    """Warns of metrics that no step measures.

    One that is only measured in evaluations is none of them: it may cost too
    much for each training step.

    Args:
        spec: what the step is made of.
        logs: what an overridden step returned.
        training: whether it is the training step.
    """
    names = spec.parts.metrics.unmeasured(logs, training=training)
    if names:
        logging.warning(
            "Neither train_step nor eval_step measures the metrics %s. Return "
            "metric_increments(y, y_pred) with the rest.",
            ", ".join(map(repr, names)),
        )


def carry(spec: StepSpec, logs: StepLogs, kept_for: Sequence[str]) -> StepLogs:
    """Updates the metrics that do not add up, in cross-replica context.

    Returns:
        The rest of the step's results.
    """
    strategy = spec.plugin.strategy

    def reduce(values: Any) -> Any:
        if not spec.options.reduces_logs:
            values = strategy.run(_sum_by_type, args=(values,))
        # Equal on all replicas by now, so the first one's will do.
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], values
        )

    return spec.parts.metrics.carry(logs, kept_for, reduce)


def _sum_by_type(values: Any) -> Any:
    """Sums over replicas, with numbers of one type in a call."""
    leaves = tf.nest.flatten(values)
    # Processes do not pack different types, and a mirrored strategy does not
    # reduce integers on several devices.
    floats = [as_floats(leaf) for leaf in leaves]
    flat = tf.nest.flatten(floats)
    found: list[Any] = [None] * len(flat)
    for dtype in dict.fromkeys(part.dtype for part in flat):
        chosen = [i for i, part in enumerate(flat) if part.dtype == dtype]
        summed = reduce_sum([flat[i] for i in chosen])
        for i, part in zip(chosen, summed, strict=True):
            found[i] = part
    whole = [
        from_floats(parts, leaf.dtype)
        for parts, leaf in zip(
            tf.nest.pack_sequence_as(floats, found), leaves, strict=True
        )
    ]
    return tf.nest.pack_sequence_as(values, whole)


def as_floats(leaf: tf.Tensor) -> list[tf.Tensor]:
    """Floats whose sums over replicas are exact."""
    if leaf.dtype.is_floating:
        return [leaf]
    if leaf.dtype.size < 8:
        return [tf.cast(leaf, tf.float64)]
    # A float64 holds integers of 53 bits.
    low = tf.bitwise.bitwise_and(leaf, tf.cast(_LOW, leaf.dtype))
    high = tf.bitwise.right_shift(leaf, tf.cast(32, leaf.dtype))
    return [tf.cast(high, tf.float64), tf.cast(low, tf.float64)]


def from_floats(parts: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """What `as_floats` has made floats of."""
    if len(parts) == 1:
        return tf.cast(parts[0], dtype)
    high, low = (tf.cast(part, dtype) for part in parts)
    return high * tf.cast(_LOW + 1, dtype) + low


def examples_in_a_slot(
    spec: StepSpec,
    *,
    training: bool,
    why: str = (
        "The state of a metric does not add up, so replicas must exchange "
        "their batches"
    ),
) -> int:
    """The most examples that a replica gets of a (micro-)batch.

    Args:
        spec: whose batches they are.
        training: of training or of evaluation.
        why: what needs the number, for the error message.

    Raises:
        UserError: the data does not say.
    """
    batch_size = spec.batches("train" if training else "eval").batch_size
    if batch_size is None:
        raise UserError(
            f"{why}, and the data does not say how many a batch holds: set its "
            "batch_size."
        )
    return slot_rows(
        batch_size,
        micro=spec.accumulation_steps if training else 1,
        num_replicas=spec.plugin.num_replicas,
    )


def _complete(
    spec: StepSpec,
    logs: StepLogs,
    batch: Any,
    *,
    micro: tf.Tensor | int,
    training: bool,
) -> StepLogs:
    metrics = spec.parts.metrics
    if not metrics.has_carried:
        return logs
    if training:
        logs = metrics.without_whole_sets(logs)
    else:
        metrics.check_whole_sets(logs, batch)
    if not metrics.has_values(logs):
        return logs
    replicas = spec.plugin.num_replicas
    # None in a trial, which runs outside of strategy.run.
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group if context else 0
    micro_batches = spec.accumulation_steps if training else 1
    slots = Slots(
        number=micro * replicas + replica,
        pieces=replicas * micro_batches,
        rows=examples_in_a_slot(spec, training=training),
    )
    return metrics.as_pieces(logs, batch, slots)
