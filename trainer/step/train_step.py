"""One training or evaluation step in cross-replica context."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

# No public name tells whether determinism was asked for.
from tensorflow.python.framework import config

from trainer.data.static_shapes import Padded
from trainer.step.divergence_guard import Measured
from trainer.step.gradient_sums import (
    GradientSums,
    batch_sums,
    piece_of,
    reduce_and_measure,
    reduce_gradients,
)
from trainer.step.gradients import all_finite, reduce_sum
from trainer.step.graph import converted, graph_function, only_if, repeat
from trainer.step.logs import DATA_WAIT, EXAMPLES, LOSS_PART, StepLogs
from trainer.step.measuring import carry, measuring
from trainer.step.metrics.carried import EVAL, TRAINING
from trainer.step.model import untracked
from trainer.step.padding import weighted
from trainer.step.pieces import Piece, open_piece
from trainer.step.reductions.average import Average, average
from trainer.strategy.checks import check_dtypes

if TYPE_CHECKING:
    from trainer.trainer import Trainer

TRAIN_STREAM, EVAL_STREAM = 0, 1


def make_train_step(trainer: "Trainer") -> Callable[[Any], StepLogs]:
    """The step that `trainer` takes: a function of the input iterator.

    With one micro-batch, no loss scale and no guard it is
    `Trainer.train_step` on each replica. Otherwise its phases are run one by
    one, because what must surround them (a loop, a condition) may not
    surround a reduction inside a replica, unless the plugin says so.
    """
    parts, strategy = trainer.parts, trainer.plugin.strategy
    check_dtypes(trainer.plugin, parts.model)
    micro_batches = trainer.accumulation_steps
    guarded = parts.watch is not None and not trainer.has_own_step
    phases = micro_batches > 1 or guarded
    on_replicas = phases and trainer.plugin.loops_on_replicas
    in_phases = parts.loss_scale is not None or (phases and not on_replicas)

    def whole(
        waited: tf.Tensor, *batches: Any
    ) -> tuple[StepLogs, tuple[Measured, ...]]:
        if on_replicas:
            return _phases_on_replica(trainer, batches, waited), ()
        (batch,) = batches
        return _own_step(trainer, batch, waited)

    def step(iterator: Any) -> StepLogs:
        before = untracked.captured()
        if in_phases:
            logs = _step_in_phases(trainer, iterator)
        else:
            batches, waited = _read(iterator, micro_batches)
            logs, seen = strategy.run(compiled, args=(waited, *batches))
            for measured in seen:
                _look_back(trainer, measured)
            if parts.ema is not None:
                parts.ema.update()
        logs = carry(trainer, logs, TRAINING)
        parts.step.assign_add(1)
        untracked.check(trainer, before)
        return logs

    compiled = (
        graph_function(whole, jit_compile=True)
        if trainer.jit_compile
        else whole
    )
    return step


def make_eval_step(trainer: "Trainer") -> Callable[[Any], StepLogs]:
    """`Trainer.eval_step` on each replica, as a function of the iterator.

    Under a strategy with static shapes a batch comes as `(x, y,
    sample_weight)` whatever the data yields: padding has the weight zero.
    """
    parts, strategy = trainer.parts, trainer.plugin.strategy
    check_dtypes(trainer.plugin, parts.model)

    def replica_step(batch: Any) -> StepLogs:
        if isinstance(batch, Padded):
            batch = weighted(batch)
        piece = piece_of(trainer, batch, training=False)
        with (
            parts.randomness.at(parts.step.read_value(), 0, EVAL_STREAM),
            open_piece(piece),
            measuring(trainer, batch, training=False) as complete,
        ):
            logs = converted(trainer.eval_step)(batch)
        return _as_logs(trainer, complete(logs), piece)

    # Named, not a lambda: TPU clusters take the name of the function around.
    def eval_step(iterator: Any) -> StepLogs:
        before = untracked.captured()
        logs = strategy.run(replica_step, args=(next(iterator),))
        logs = carry(trainer, logs, (EVAL,))
        untracked.check(trainer, before, training=False)
        return logs

    return eval_step


def _read(iterator: Any, count: int) -> tuple[tuple[Any, ...], tf.Tensor]:
    """The next batches, and how many seconds they were waited for.

    A clock is no deterministic op: where only those are allowed, nothing is
    measured.
    """
    if config.is_op_determinism_enabled():
        return tuple(next(iterator) for _ in range(count)), tf.constant(0.0)
    with tf.device("CPU:0"):
        before = tf.timestamp()
    with tf.control_dependencies([before]):
        batches = tuple(next(iterator) for _ in range(count))
    read = tf.nest.flatten(batches, expand_composites=True)
    with tf.control_dependencies(read), tf.device("CPU:0"):
        waited = tf.cast(tf.timestamp() - before, tf.float32)
    return batches, waited


def _as_logs(
    trainer: "Trainer",
    logs: dict[str, Any],
    piece: Piece,
    waited: tf.Tensor | None = None,
) -> StepLogs:
    """Completes what a step returned: plain scalars average over steps."""
    complete = {}
    for name, value in logs.items():
        value = average(value) if isinstance(value, tf.Tensor) else value
        if isinstance(value, Average):
            complete[name] = piece.or_nothing(value)
        else:
            complete[name] = piece.or_zeros(value)
    complete[EXAMPLES] = average(piece.examples, 0.0)
    if waited is not None:
        # All replicas waited; what they log is summed.
        part = waited / trainer.plugin.num_replicas
        complete[DATA_WAIT] = average(part, 0.0)
    return reduce_sum(complete) if trainer.plugin.reduces_logs else complete


def _own_step(
    trainer: "Trainer", batch: Any, waited: tf.Tensor
) -> tuple[StepLogs, tuple[Measured, ...]]:
    """`Trainer.train_step` on one replica, and what a guard must know of it."""
    parts = trainer.parts
    watched: contextlib.AbstractContextManager[list[Any]] = (
        contextlib.nullcontext([])
        if parts.watch is None
        else parts.watch.listening()
    )
    piece = piece_of(trainer, batch, training=True)
    with (
        parts.randomness.at(parts.step.read_value()),
        open_piece(piece),
        measuring(trainer, batch) as complete,
        watched as norms,
    ):
        logs = converted(trainer.train_step)(batch)
        _tell_left_out(trainer, logs)
    logs = _as_logs(trainer, complete(logs), piece, waited)
    if parts.watch is None:
        return logs, ()
    losses = {
        name: value
        for name, value in logs.items()
        if name == "loss" or name.startswith(LOSS_PART)
    }
    if not trainer.plugin.reduces_logs:
        losses = reduce_sum(losses)
    loss = sum((one.value for one in losses.values()), tf.constant(0.0))
    return logs, (Measured(loss, tf.norm([0.0, *norms])),)


def _tell_left_out(trainer: "Trainer", logs: StepLogs) -> None:
    names = trainer.parts.metrics.left_out(logs)
    if names:
        logging.warning(
            "The train_step returns nothing of the metrics %s, which are only "
            "measured in evaluations then. Return metric_increments(y, "
            "y_pred) with the rest.",
            ", ".join(map(repr, names)),
        )


def _look_back(trainer: "Trainer", measured: Measured) -> None:
    """Judges a step of one's own, whose update has been made already."""
    parts, strategy = trainer.parts, trainer.plugin.strategy
    assert parts.watch is not None
    parts.watch.apply_if_sound(
        _local(strategy, measured),
        step=parts.step.read_value(),
        apply=lambda: None,
    )


def _micro_batch_sums(
    trainer: "Trainer", batch: Any, micro: tf.Tensor, waited: tf.Tensor
) -> tuple[GradientSums, StepLogs]:
    """Sums of one replica's micro-batch, and what the step returns of it."""
    parts = trainer.parts
    with (
        parts.randomness.at(parts.step.read_value(), micro),
        measuring(trainer, batch, micro=micro) as complete,
    ):
        sums, logs = batch_sums(trainer, batch)
    piece = piece_of(trainer, batch, training=True)
    return sums, _as_logs(trainer, complete(logs), piece, waited)


def _phases_on_replica(
    trainer: "Trainer", batches: Sequence[Any], waited: tf.Tensor
) -> StepLogs:
    """A step's micro-batches in a loop on one replica, then the update.

    Args:
        trainer: whose step it is.
        batches: the replica's micro-batches, of one shape.
        waited: seconds, for all of them.
    """
    share = waited / len(batches)
    parts = trainer.parts
    stacked = tf.nest.map_structure(lambda *same: tf.stack(same), *batches)

    def sums_of(micro: tf.Tensor) -> tuple[Any, StepLogs]:
        batch = tf.nest.map_structure(lambda part: part[micro], stacked)
        return _micro_batch_sums(trainer, batch, micro, share)

    def one_more(micro: tf.Tensor, total: Any) -> Any:
        return tf.nest.map_structure(tf.add, total, sums_of(micro))

    total = sums_of(tf.constant(0))
    if len(batches) > 1:
        total = repeat(one_more, total, start=1, stop=len(batches))
    gradient_sums, logs = total
    if parts.watch is None:
        reduced = reduce_gradients(trainer, gradient_sums)
        converted(trainer.apply_gradients)(reduced)
        return logs
    gradients, measured = reduce_and_measure(trainer, gradient_sums)
    parts.watch.apply_if_sound(
        measured,
        step=parts.step.read_value(),
        apply=lambda: converted(trainer.apply_gradients)(gradients),
    )
    return logs


def _step_in_phases(trainer: "Trainer", iterator: Any) -> StepLogs:
    """Sums over micro-batches; reduces; applies if all agree it is sound."""
    strategy = trainer.plugin.strategy

    def replica_sums(
        batch: Any, micro: tf.Tensor, waited: tf.Tensor
    ) -> tuple[GradientSums, StepLogs]:
        return _micro_batch_sums(trainer, batch, micro, waited)

    def micro_batch(micro: tf.Tensor) -> tuple[Any, StepLogs]:
        (batch,), waited = _read(iterator, 1)
        return strategy.run(compiled, args=(batch, micro, waited))

    def add(left: Any, right: Any) -> Any:
        return tf.nest.map_structure(tf.add, left, right)

    def all_at_once(batch: Any, waited: tf.Tensor) -> StepLogs:
        arguments = (batch, tf.constant(0), waited)
        gradient_sums, logs = strategy.run(replica_sums, args=arguments)
        _reduce_and_apply(trainer, gradient_sums)
        return logs

    if trainer.jit_compile and _is_one_program(trainer):
        (batch,), waited = _read(iterator, 1)
        return graph_function(all_at_once, jit_compile=True)(batch, waited)
    compiled = (
        graph_function(replica_sums, jit_compile=True)
        if trainer.jit_compile
        else replica_sums
    )

    def one_more(micro: tf.Tensor, sums: Any) -> Any:
        return strategy.run(add, args=(sums, micro_batch(micro)))

    sums = micro_batch(tf.constant(0))
    if trainer.accumulation_steps > 1:  # A sparse gradient fits into no loop.
        sums = repeat(one_more, sums, start=1, stop=trainer.accumulation_steps)
    gradient_sums, logs = sums
    _reduce_and_apply(trainer, gradient_sums)
    return logs


def _is_one_program(trainer: "Trainer") -> bool:
    """Whether nothing but the input stands between the phases of a step."""
    return trainer.accumulation_steps == 1 and trainer.parts.loss_scale is None


def _reduce_and_apply(trainer: "Trainer", sums: GradientSums) -> None:
    """Makes the update, unless loss scale or guard find it unsound."""
    parts, strategy = trainer.parts, trainer.plugin.strategy
    reduce = reduce_gradients if parts.watch is None else reduce_and_measure
    reduced = strategy.run(lambda s: reduce(trainer, s), args=(sums,))
    gradients = reduced if parts.watch is None else reduced[0]

    def apply() -> None:
        strategy.run(converted(trainer.apply_gradients), args=(gradients,))
        if parts.ema is not None:
            parts.ema.update()

    if parts.watch is None and parts.loss_scale is None:
        apply()
        return
    finite, overflowed = True, False
    if parts.loss_scale is not None:
        flags = strategy.run(
            lambda g: all_finite(list(g.values())), args=(gradients,)
        )
        finite = _local(strategy, flags)
        overflowed = ~finite & (parts.loss_scale.value > 1.0)
    if parts.watch is not None:
        parts.watch.apply_if_sound(
            _local(strategy, reduced[1]),
            step=parts.step.read_value(),
            apply=apply,
            overflowed=overflowed,
        )
    else:
        only_if(finite, apply)
    if parts.loss_scale is not None:
        parts.loss_scale.update(finite)


def _local(strategy: tf.distribute.Strategy, structure: Any) -> Any:
    """A replica's values, where they are equal on all: any one will do."""
    return tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], structure
    )
