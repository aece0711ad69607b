"""From a replica's batch to gradients of the global loss.

What the Trainer's own step does: sums on each replica, one reduction, one
division. See `trainer.step.losses.loss_terms` for the equation.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted
from trainer.step import gradients as grads
from trainer.step.context import step_context
from trainer.step.divergence_guard import Measured
from trainer.step.logs import StepLogs
from trainer.step.losses import loss_terms
from trainer.step.losses.global_loss import global_term
from trainer.step.losses.outputs import in_floatx, weights_of_classes
from trainer.step.measuring import replica_batch
from trainer.step.spec import StepSpec


class GradientSums(NamedTuple):
    """What one replica's batch adds to the gradient, before the division.

    Attributes:
        gradients: by denominator group, variable number to gradient sum.
        counts: by denominator group, the part of the denominator.
        losses: by denominator group, the part of the loss; only where a
            guard needs it.
    """

    gradients: dict[str, dict[int, Any]]
    counts: dict[str, tf.Tensor]
    losses: dict[str, tf.Tensor]


class Reduced(NamedTuple):
    """What all replicas agree on, equal on each.

    Attributes:
        gradients: variable number to the gradient of the global loss.
        measured: what a guard looks at; empty without one.
    """

    gradients: dict[int, grads.Gradient]
    measured: tuple[Measured, ...]


def measure(
    spec: StepSpec, batch: Any, *, training: bool
) -> tuple[list[loss_terms.Term], StepLogs]:
    """Runs the model on a replica's batch.

    Args:
        spec: whose step it is.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`.
        training: whether to train or to evaluate.

    Returns:
        The terms of the loss, and what a step returns of them.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    here = replica_batch(spec, batch, training=training)
    with step_context.within(batch=here):
        y_pred = converted(spec.methods.forward)(x, training=training)
        # As `fit` does. NumPy targets are often float64, and a loss would
        # compute in that.
        y = in_floatx(y)
        values = converted(spec.methods.per_example_loss)(x, y, y_pred)
        if step_context.probe is not None:
            step_context.probe.take_losses(values)
        weights = weight
        if training and spec.class_weight is not None:
            weights = weights_of_classes(y, weight, spec.class_weight)
        terms, by_output = loss_terms.terms(
            spec, values, y_pred=y_pred, sample_weight=weights, here=here
        )
        if spec.has_own("global_loss"):
            whole = (x, y, y_pred)
            terms.append(global_term(spec, batch, piece=here, parts=whole))
    terms += loss_terms.added_terms(spec.model, here, spec.added_losses)
    logs = loss_terms.loss_logs(spec.model, terms, here.examples) | by_output
    increments = converted(spec.methods.metric_increments)
    return terms, logs | increments(y, y_pred, weight)


def gradient_sums(spec: StepSpec, batch: Any) -> tuple[GradientSums, StepLogs]:
    """Loss and gradient sums of one replica's (micro-)batch.

    Raises:
        UserError: there is nothing to minimize.
    """
    # The tape watches the tf.Variables inside Keras variables.
    variables = [v.value for v in spec.model.trainable_variables]
    here = replica_batch(spec, batch, training=True)
    # Persistent: each denominator group needs a gradient of its own, as the
    # denominators are only known after the reduction.
    with tf.GradientTape(persistent=True) as tape:
        terms, logs = measure(spec, batch, training=True)
        if not terms:
            raise UserError(
                "There is no loss: pass loss=..., override per_example_loss or "
                "global_loss, or call add_loss in the model."
            )
        merged = loss_terms.merge_terms(terms)
        # Within the tape, so that the float16 gradients themselves are scaled.
        scaled = [term.total * _loss_factor(spec) for term in merged]
    found = {}
    for term, total in zip(merged, scaled, strict=True):
        # A replica without examples computes NaNs, which the sum would spread.
        local = here.or_zeros(tape.gradient(total, variables))
        # The micro-batches' sparse gradients have different numbers of rows,
        # which a tf.while_loop cannot carry.
        if spec.accumulation_steps > 1 or not spec.options.reduces_sparse:
            local = grads.densify(local)
        found[term.group] = {
            i: gradient
            for i, gradient in enumerate(local)
            if gradient is not None
        }
    counts = {term.group: term.count for term in merged}
    # Without a guard the totals would travel for nothing.
    guarded = spec.guard is not None
    totals = {term.group: term.total for term in merged if guarded}
    return GradientSums(found, counts, totals), logs


def reduce_gradients(spec: StepSpec, sums: GradientSums) -> Reduced:
    """Sums over replicas, divides, and adds the regularizers' gradient.

    What a guard must know travels with the gradients, at no extra transfer.
    """
    sums = GradientSums(*grads.reduce_sum(sums))
    gradients = _divide(spec, sums)
    if spec.guard is None:
        return Reduced(gradients, ())
    regularized = loss_terms.regularized_variables(spec.model)
    loss = loss_terms.regularization(regularized)
    for group, total in sums.losses.items():
        # A batch that a mask or the weights leave nothing of has a loss of
        # zero.
        loss += tf.math.divide_no_nan(total, sums.counts[group])
    # A sparse gradient may hold several summands of one row: the norm needs
    # their sum. XLA has no tf.unique, so it gets a dense gradient.
    true = grads.rows_once([*gradients.values()], dense=spec.form.uses_xla)
    return Reduced(gradients, (Measured(loss, grads.global_norm(true)),))


def _divide(spec: StepSpec, sums: GradientSums) -> dict[int, grads.Gradient]:
    """The gradient of the global loss from sums over all replicas."""
    scale = _loss_factor(spec)
    result: dict[int, grads.Gradient] = {}
    for group, found in sums.gradients.items():
        # One scalar factor per group: division and loss scale in one pass over
        # the gradient.
        factor = tf.math.divide_no_nan(1.0, sums.counts[group])
        for i, gradient in found.items():
            divided = grads.scale(gradient, factor / scale)
            result[i] = grads.add(result.get(i), divided)
    for i, gradient in _regularizer_gradients(spec.model).items():
        result[i] = grads.add(result.get(i), gradient)
    return result


def _loss_factor(spec: StepSpec) -> tf.Tensor:
    """What the loss is multiplied by, so that float16 gradients fit."""
    loss_scale = spec.parts.loss_scale
    if loss_scale is None:
        return tf.constant(1.0)
    # The sum of a batch would overflow where its mean does not.
    return loss_scale.value / spec.batch_size


def _regularizer_gradients(model: keras.Model) -> dict[int, tf.Tensor]:
    """Equal on every replica, so never reduced: it counts once."""
    variables = loss_terms.regularized_variables(model)
    if not variables:
        return {}
    numbers = {id(v): i for i, v in enumerate(model.trainable_variables)}
    # A tape of its own, after the reduction: the penalty is equal on every
    # replica, and a SUM would count it once for each.
    with tf.GradientTape() as tape:
        penalty = loss_terms.regularization(variables)
    found = tape.gradient(penalty, [v.value for v in variables])
    return {
        numbers[id(v)]: gradient
        for v, gradient in zip(variables, found, strict=True)
    }
