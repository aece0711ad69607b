"""One training or evaluation step in cross-replica context."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer.checks import check_dtypes
from trainer.data.fixed_shapes import Padded
from trainer.step.average import average
from trainer.step.gradient_sums import batch_sums, reduce_gradients
from trainer.step.gradients import all_finite, reduce_sum
from trainer.step.padding import count_examples, weighted
from trainer.step.totals import EXAMPLES, StepLogs

if TYPE_CHECKING:
    from trainer.trainer import Trainer

TRAIN_STREAM, EVAL_STREAM = 0, 1


def make_train_step(trainer: "Trainer") -> Callable[[Any], StepLogs]:
    """The step that `trainer` takes: a function of the input iterator.

    With one micro-batch and no loss scale it is `Trainer.train_step` on each
    replica. Otherwise its phases are run one by one, because what must
    surround them (a loop, a condition) may not surround a reduction inside a
    replica, unless the plugin says so.
    """
    parts, strategy = trainer.parts, trainer.plugin.strategy
    check_dtypes(trainer.plugin, parts.model)
    micro_batches = trainer.accumulation_steps
    loops = micro_batches > 1 and trainer.plugin.loops_on_replicas
    in_phases = parts.loss_scale is not None or (
        micro_batches > 1 and not loops
    )

    def whole(*batches: Any) -> StepLogs:
        if loops:
            return _accumulated_step(trainer, batches)
        (batch,) = batches
        with parts.randomness.at(parts.step.read_value()):
            logs = trainer.train_step(batch)
        return _as_logs(trainer, logs, batch)

    def step(iterator: Any) -> StepLogs:
        if in_phases:
            logs = _step_in_phases(trainer, iterator)
        else:
            batches = tuple(next(iterator) for _ in range(micro_batches))
            logs = strategy.run(compiled, args=batches)
            if parts.ema is not None:
                parts.ema.update()
        parts.step.assign_add(1)
        return logs

    compiled = (
        tf.function(whole, jit_compile=True) if trainer.jit_compile else whole
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
        with parts.randomness.at(parts.step.read_value(), 0, EVAL_STREAM):
            logs = trainer.eval_step(batch)
        return _as_logs(trainer, logs, batch)

    # Named, not a lambda: TPU clusters take the name of the function around.
    def eval_step(iterator: Any) -> StepLogs:
        return strategy.run(replica_step, args=(next(iterator),))

    return eval_step


def _as_logs(trainer: "Trainer", logs: dict[str, Any], batch: Any) -> StepLogs:
    """Completes what a step returned: plain scalars average over steps."""
    complete = {
        name: average(value) if isinstance(value, tf.Tensor) else value
        for name, value in logs.items()
    }
    complete[EXAMPLES] = average(count_examples(batch), 0.0)
    return reduce_sum(complete) if trainer.plugin.reduces_logs else complete


def _accumulated_step(trainer: "Trainer", batches: Sequence[Any]) -> StepLogs:
    """All of a step's micro-batches in a loop on one replica.

    Args:
        trainer: whose step it is.
        batches: the replica's micro-batches, of one shape.
    """
    parts = trainer.parts
    stacked = tf.nest.map_structure(lambda *same: tf.stack(same), *batches)

    def sums_of(micro: tf.Tensor) -> tuple[Any, StepLogs]:
        batch = tf.nest.map_structure(lambda part: part[micro], stacked)
        with parts.randomness.at(parts.step.read_value(), micro):
            sums, logs = batch_sums(trainer, batch)
        return sums, _as_logs(trainer, logs, batch)

    total = sums_of(tf.constant(0))
    for micro in tf.range(1, len(batches)):
        total = tf.nest.map_structure(tf.add, total, sums_of(micro))
    gradient_sums, logs = total
    trainer.apply_gradients(reduce_gradients(trainer, gradient_sums))
    return logs


def _step_in_phases(trainer: "Trainer", iterator: Any) -> StepLogs:
    """Sums over micro-batches; reduces; applies if all agree it is sound."""
    parts, strategy = trainer.parts, trainer.plugin.strategy

    def replica_sums(batch: Any, micro: tf.Tensor) -> tuple[Any, StepLogs]:
        with parts.randomness.at(parts.step.read_value(), micro):
            sums, logs = batch_sums(trainer, batch)
        return sums, _as_logs(trainer, logs, batch)

    def micro_batch(micro: tf.Tensor) -> tuple[Any, StepLogs]:
        return strategy.run(compiled, args=(next(iterator), micro))

    def add(left: Any, right: Any) -> Any:
        return tf.nest.map_structure(tf.add, left, right)

    compiled = (
        tf.function(replica_sums, jit_compile=True)
        if trainer.jit_compile
        else replica_sums
    )
    sums = micro_batch(tf.constant(0))
    for micro in tf.range(1, trainer.accumulation_steps):
        sums = strategy.run(add, args=(sums, micro_batch(micro)))
    gradient_sums, logs = sums
    gradients = strategy.run(
        lambda replica_sums: reduce_gradients(trainer, replica_sums),
        args=(gradient_sums,),
    )
    _apply(trainer, gradients)
    return logs


def _apply(trainer: "Trainer", gradients: Any) -> None:
    """Applies reduced gradients, unless the loss scale finds them too large."""
    parts, strategy = trainer.parts, trainer.plugin.strategy

    def apply() -> None:
        strategy.run(trainer.apply_gradients, args=(gradients,))
        if parts.ema is not None:
            parts.ema.update()

    if parts.loss_scale is None:
        apply()
        return
    # Reduced gradients are equal everywhere: any replica's answer will do.
    flags = strategy.run(lambda g: all_finite(list(g.values())), (gradients,))
    finite = strategy.experimental_local_results(flags)[0]
    if finite:
        apply()
    parts.loss_scale.update(finite)
