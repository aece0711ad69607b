"""One optimizer step: the algorithm, and the two ways to run it.

With the sums over micro-batches and replicas of gradients g, losses l and
denominators D (see `trainer.step.losses.loss_terms`), a step is

    1. sums:    each replica adds up g, l and D over its micro-batches
    2. reduce:  one SUM over replicas, then g / D, then the regularizers
    3. apply:   if the result is sound: clip, update, move the averages

`optimizer_step` is written once, over `run`, which calls a function on the
replicas. There are two ways to run it:

- As one program (`_as_one_program`): `run` is a plain call inside
  `strategy.run`. All of it can be compiled, and on a TPU it is.
- Around the replicas (`_around_replicas`): `run` is `strategy.run`. A
  reduction must not be in a loop or a condition of a replica: on anything
  but a TPU the replicas would wait for each other in different places. So
  the loop over micro-batches and the condition of a guarded update are
  outside of the replicas, and the reduction is between the two.

A `train_step` that research code overrides is the whole program of a replica.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.data.feeding import Padded
from trainer.runtime.graph import converted, graph_function, only_if, repeat
from trainer.step import timed_input
from trainer.step.divergence_guard import Measured
from trainer.step.forms import Form
from trainer.step.gradients import (
    all_finite,
    global_norm,
    rows_once,
)
from trainer.step.keras import untracked
from trainer.step.logs import StepLogs
from trainer.step.measuring import in_step
from trainer.step.methods import GradientSums, Reduced
from trainer.step.metrics.states import EVAL, TRAINING
from trainer.step.replica_batch import weighted
from trainer.step.spec import StepSpec

# Keeps the random numbers of evaluation apart from those of training steps,
# which have the same step numbers.
_EVALUATION = 1
# Calls a function on the replicas: `run(f, args=(...))`.
Run: TypeAlias = Callable[..., Any]
# From the number of a micro-batch to the micro-batch and the seconds spent
# waiting for it.
ReadMicroBatch: TypeAlias = Callable[[tf.Tensor], tuple[Any, tf.Tensor]]
# From the input iterator to what a step logs, and whether the weights changed.
Update: TypeAlias = Callable[[Any], tuple[StepLogs, tf.Tensor | bool]]


def make_train_step(spec: StepSpec) -> Callable[[Any], StepLogs]:
    """The step of a run, as a function of the input iterator."""
    parts = spec.parts
    update = _as_one_program(spec) if _is_one(spec) else _around_replicas(spec)
    if _compiles_all(spec):
        update = _compiled(update, count=spec.accumulation_steps)

    def train_step(iterator: Any) -> StepLogs:
        spec.bind()
        # What the graph captured earlier is the strategy's, not the step's.
        before = untracked.captured()
        logs, applied = update(iterator)
        if parts.ema is not None:
            # Here, in cross-replica context, as it updates every replica's
            # copy. After a refused update the averages stay, too.
            _where(applied, parts.ema.update)
        logs = _handed_over(spec, logs, TRAINING)
        # Counted whether or not the update was made: the step has used up its
        # batch.
        parts.step.assign_add(1)
        untracked.check(
            parts.untracked,
            parts.model,
            before,
            training=True,
            # Only a run that saves can be resumed wrongly.
            refuse=spec.saves(),
        )
        return logs

    return train_step


def make_eval_step(spec: StepSpec) -> Callable[[Any], StepLogs]:
    """`Trainer.eval_step` on each replica, as a function of the iterator.

    Under a strategy with static shapes a batch is always `(x, y,
    sample_weight)`, whatever the data yields: padding has weight zero.
    """
    parts, strategy = spec.parts, spec.plugin.strategy

    def replica_step(batch: Any) -> StepLogs:
        if isinstance(batch, Padded):
            batch = weighted(batch)
        with in_step(spec, batch, stream=_EVALUATION, training=False) as (
            batch,
            complete,
        ):
            logs = converted(spec.methods.eval_step)(batch)
            return complete(logs)

    # A named function, not a lambda: TPU clusters are named after it.
    def eval_step(iterator: Any) -> StepLogs:
        spec.bind()
        # What the graph has captured before the step is the strategy's, such as
        # the input iterator; everything after it is the step's and is checked
        # below.
        before = untracked.captured()
        logs = strategy.run(replica_step, args=(next(iterator),))
        logs = _handed_over(spec, logs, (EVAL,))
        untracked.check(parts.untracked, parts.model, before)
        return logs

    return eval_step


def optimizer_step(
    spec: StepSpec, read: ReadMicroBatch, run: Run
) -> tuple[StepLogs, tf.Tensor | bool]:
    """One optimizer step over the micro-batches of a global batch.

    Args:
        spec: what the step is made of.
        read: returns a micro-batch, or one for each replica.
        run: calls a function on a replica, or on all.

    Returns:
        What the step measured, summed over micro-batches; and whether the
        update was made, a boolean scalar.
    """
    sums, logs = _sums_of_micro_batches(spec, read, run)
    reduced = run(converted(spec.methods.reduce_gradients), args=(sums,))
    return logs, _apply_if_sound(spec, reduced, run)


def _sums_of_micro_batches(
    spec: StepSpec, read: ReadMicroBatch, run: Run
) -> tuple[GradientSums, StepLogs]:
    """Phase 1: sums of gradients, losses and denominators, not reduced."""

    def local_sums(
        batch: Any, micro: tf.Tensor, waited: tf.Tensor
    ) -> tuple[GradientSums, StepLogs]:
        with in_step(spec, batch, micro=micro) as (batch, complete):
            sums, logs = converted(spec.methods.gradient_sums)(batch)
            return sums, complete(logs, waited)

    def on_replica(*args: Any) -> tuple[GradientSums, StepLogs]:
        # Not `compiled` itself: TensorFlow's mirrored strategy would take the
        # compilation of a `tf.function` for one of all replicas together.
        return compiled(*args)

    def of_micro_batch(micro: tf.Tensor) -> tuple[GradientSums, StepLogs]:
        batch, waited = read(micro)
        return run(on_replica, args=(batch, micro, waited))

    def add(left: Any, right: Any) -> Any:
        return tf.nest.map_structure(tf.add, left, right)

    def one_more(micro: tf.Tensor, total: Any) -> Any:
        # Under `strategy.run` the totals are per-replica values, which only the
        # replicas can add.
        return run(add, args=(total, of_micro_batch(micro)))

    compiled = (
        graph_function(local_sums, jit_compile=True)
        # Else the whole step is compiled.
        if spec.form is Form.XLA and not _compiles_all(spec)
        else local_sums
    )
    total = of_micro_batch(tf.constant(0))
    # The first micro-batch, outside of the loop, says what is added up. A loop
    # of no iterations would cost an only micro-batch its sparse gradients.
    if spec.accumulation_steps > 1:
        total = repeat(one_more, total, start=1, stop=spec.accumulation_steps)
    return total


def _apply_if_sound(
    spec: StepSpec, reduced: Reduced, run: Run
) -> tf.Tensor | bool:
    """Phase 3: makes the update, unless loss scale or guard refuse it.

    All replicas decide alike, since they decide by reduced values.

    Returns:
        Whether it was made, a boolean scalar.
    """
    parts = spec.parts

    def apply() -> None:
        gradients = (reduced.gradients,)
        run(converted(spec.methods.apply_gradients), args=gradients)

    def examine(reduced: Reduced) -> dict[str, Any]:
        gradients = [*reduced.gradients.values()]
        found: dict[str, Any] = {}
        if parts.loss_scale is not None:
            found["finite"] = all_finite(gradients)
        if parts.guard is not None:
            # A sparse gradient may hold several summands of one row: the norm
            # needs their sum. XLA has no tf.unique, so it gets a dense one.
            true = rows_once(gradients, dense=spec.form.uses_xla)
            found["measured"] = Measured(reduced.loss, global_norm(true))
        return found

    if parts.loss_scale is None and parts.guard is None:
        apply()
        return True
    found = _one_of(spec, run(examine, args=(reduced,)), run)
    applied = finite = found.get("finite", True)
    overflowed: tf.Tensor | bool = False
    if parts.loss_scale is not None:
        # At a scale of 1 the gradient itself is not finite: that is a fault.
        overflowed = ~finite & (parts.loss_scale.value > 1.0)
    if parts.guard is None:
        _where(finite, apply)
    else:
        applied = parts.guard.apply_if_sound(
            found["measured"],
            step=parts.step.read_value(),
            apply=apply,
            overflowed=overflowed,
        )
    if parts.loss_scale is not None:
        parts.loss_scale.update(finite)
    return applied


def _is_one(spec: StepSpec) -> bool:
    """Whether a replica's program is the whole step."""
    if spec.parts.loss_scale is not None:
        return False  # The scale is adjusted in cross-replica context.
    # A loop or a condition around the reduction; see the top of this file.
    surrounded = spec.accumulation_steps > 1 or spec.parts.guard is not None
    return spec.options.loops_on_replicas or not surrounded


def _as_one_program(spec: StepSpec) -> Update:
    """The step inside `strategy.run`."""
    strategy = spec.plugin.strategy
    count = spec.accumulation_steps
    guard = spec.parts.guard

    def program(waited: tf.Tensor, *batches: Any) -> Any:
        if spec.has_own("train_step"):
            with in_step(spec, batches[0]) as (batch, complete):
                logs = converted(spec.methods.train_step)(batch)
                return complete(logs, waited), ()
        # [micro-batches, batch, ...]: a loop can index a tensor, not a tuple.
        stacked = count > 1 and tf.nest.map_structure(
            lambda *same: tf.stack(same), *batches
        )

        def read(micro: tf.Tensor) -> tuple[Any, tf.Tensor]:
            if count == 1:
                return batches[0], waited
            batch = tf.nest.map_structure(lambda part: part[micro], stacked)
            return batch, waited / count

        logs, applied = optimizer_step(spec, read, _call)
        # A replica can only return tensors: not the plain True of a step
        # without a guard.
        return logs, () if guard is None else (tf.convert_to_tensor(applied),)

    def update(iterator: Any) -> tuple[StepLogs, tf.Tensor | bool]:
        batches, waited = timed_input.read(iterator, count)
        logs, result = strategy.run(program, args=(waited, *batches))
        if guard is None:
            return logs, True
        (applied,) = _one_of(spec, result, strategy.run)
        return logs, applied

    return update


def _around_replicas(spec: StepSpec) -> Update:
    """The step with `strategy.run` for each of its phases."""

    def update(iterator: Any) -> tuple[StepLogs, tf.Tensor | bool]:
        def read(micro: tf.Tensor) -> tuple[Any, tf.Tensor]:
            # Read within the loop: one micro-batch at a time is in memory.
            (batch,), waited = timed_input.read(iterator)
            return batch, waited

        return optimizer_step(spec, read, spec.plugin.strategy.run)

    return update


def _compiles_all(spec: StepSpec) -> bool:
    """Whether XLA can compile all of a step together."""
    # It cannot compile a reduction over the replicas of `tf.distribute`.
    is_alone = spec.plugin.num_replicas == 1
    is_plain = spec.accumulation_steps == 1 and spec.parts.loss_scale is None
    return spec.form is Form.XLA and is_alone and (is_plain or _is_one(spec))


def _compiled(update: Update, *, count: int) -> Update:
    """An update that XLA compiles, of so many micro-batches."""

    def on_batches(waited: tf.Tensor, *batches: Any) -> Any:
        logs, applied = update(timed_input.Given(batches, waited))
        # A graph returns tensors only.
        return logs, () if applied is True else (applied,)

    function = graph_function(on_batches, jit_compile=True)

    def compiled(iterator: Any) -> tuple[StepLogs, tf.Tensor | bool]:
        # XLA cannot compile the iterator's ops: the input is read outside.
        batches, waited = timed_input.read(iterator, count)
        logs, applied = function(waited, *batches)
        return logs, applied[0] if applied else True

    return compiled


def _handed_over(
    spec: StepSpec, logs: StepLogs, intervals: Sequence[str]
) -> StepLogs:
    """What adds up of a step's results, once the host has the rest."""
    run = spec.plugin.strategy.run
    return spec.parts.metrics.hand_over(
        logs, intervals, lambda value: _one_of(spec, value, run)
    )


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs a function where the caller is: inside a replica's program."""
    return function(*args)


def _where(condition: tf.Tensor | bool, act: Callable[[], object]) -> None:
    """Acts if a scalar is true; a plain `True` needs no condition."""
    if condition is True:
        act()
    else:
        only_if(condition, act)


def _one_of(spec: StepSpec, structure: Any, run: Run) -> Any:
    """What `run` returned, where it is equal on all replicas: any will do."""
    if run is _call:
        return structure
    strategy = spec.plugin.strategy
    return tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], structure
    )
