"""From a replica's batch to gradients of the global loss.

The path of the Trainer's own step: sums on each replica, one reduction, one
division. See `trainer.step.losses.loss_terms` for the equation.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step import gradients as grads
from trainer.step.divergence_guard import Measured
from trainer.step.graph import converted
from trainer.step.logs import StepLogs
from trainer.step.losses import loss_terms, per_output
from trainer.step.losses.global_loss import global_term
from trainer.step.measuring import examples_in_a_slot
from trainer.step.padding import real_rows
from trainer.step.pieces import Piece, open_piece

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class GradientSums(NamedTuple):
    """What one replica's batch adds to the gradient, before the division.

    Attributes:
        gradients: by denominator group, variable number to gradient sum.
        counts: by denominator group, the part of the denominator.
        losses: by denominator group, the part of the loss; only where a
            guard asks for it.
    """

    gradients: dict[str, dict[int, Any]]
    counts: dict[str, tf.Tensor]
    losses: dict[str, tf.Tensor]


def piece_of(trainer: "Trainer", batch: Any, *, training: bool) -> Piece:
    """A replica's batch as one of the pieces of a global batch."""
    micro = trainer.accumulation_steps if training else 1
    slot = None
    if not trainer.plugin.is_alone:
        slot = functools.partial(
            examples_in_a_slot,
            trainer,
            training=training,
            why="all_gather exchanges examples between processes",
        )
    return Piece(batch, pieces=trainer.plugin.num_replicas * micro, slot=slot)


def measure(
    trainer: "Trainer",
    batch: Any,
    *,
    training: bool,
    piece: Piece | None = None,
) -> tuple[list[loss_terms.Term], StepLogs]:
    """Runs the model on a replica's batch.

    Args:
        trainer: whose step it is.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`.
        training: whether to train or to evaluate.
        piece: the same batch, where the caller has counted it already.

    Returns:
        The terms of the loss, and what a step returns of them.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    piece = piece or piece_of(trainer, batch, training=training)
    with open_piece(piece):
        y_pred = converted(trainer.forward)(x, training=training)
        y = per_output.in_floatx(y)
        values = converted(trainer.per_example_loss)(x, y, y_pred)
    terms, by_output = per_output.terms(
        trainer,
        values,
        y_pred=y_pred,
        sample_weight=per_output.weights(trainer, y, weight, training=training),
        examples=piece.examples,
        parts=piece.pieces,
        real=real_rows(batch),
        rows=piece.rows,
    )
    if trainer.has_global_loss:
        with open_piece(piece):
            whole = (x, y, y_pred)
            terms.append(global_term(trainer, batch, piece=piece, parts=whole))
    terms += loss_terms.added_terms(trainer.model, piece, trainer.added_losses)
    logs = (
        loss_terms.loss_logs(trainer.model, terms, piece.examples) | by_output
    )
    increments = converted(trainer.metric_increments)
    return terms, logs | increments(y, y_pred, weight)


def batch_sums(trainer: "Trainer", batch: Any) -> tuple[GradientSums, StepLogs]:
    """Loss and gradient sums of one replica's (micro-)batch.

    Raises:
        UserError: there is nothing to minimize.
    """
    variables = [v.value for v in trainer.model.trainable_variables]
    piece = piece_of(trainer, batch, training=True)
    with tf.GradientTape(persistent=True) as tape:
        terms, logs = measure(trainer, batch, training=True, piece=piece)
        if not terms:
            raise UserError(
                "There is no loss: pass loss=..., override per_example_loss or "
                "global_loss, or call add_loss in the model."
            )
        merged = loss_terms.merge_terms(terms)
        scaled = [term.total * _loss_factor(trainer) for term in merged]
    found = {}
    for term, total in zip(merged, scaled, strict=True):
        local = piece.or_zeros(tape.gradient(total, variables))
        if trainer.accumulation_steps > 1 or not trainer.plugin.reduces_sparse:
            local = grads.densify(local)
        found[term.group] = {
            i: gradient
            for i, gradient in enumerate(local)
            if gradient is not None
        }
    counts = {term.group: term.count for term in merged}
    guarded = trainer.guard is not None
    totals = {term.group: term.total for term in merged if guarded}
    return GradientSums(found, counts, totals), logs


def reduce_gradients(
    trainer: "Trainer", sums: GradientSums
) -> dict[int, grads.Gradient]:
    """Sums over replicas, divides, and adds the regularizers' gradient.

    Returns:
        Variable number to gradient, equal on every replica.
    """
    return _divide(trainer, GradientSums(*grads.reduce_sum(sums)))


def reduce_and_measure(
    trainer: "Trainer", sums: GradientSums
) -> tuple[dict[int, grads.Gradient], Measured]:
    """Does as `reduce_gradients`, and says what a guard must know.

    The loss travels with the gradients: no transfer is added.
    """
    sums = GradientSums(*grads.reduce_sum(sums))
    gradients = _divide(trainer, sums)
    loss = loss_terms.regularization(
        loss_terms.regularized_variables(trainer.model)
    )
    for group, total in sums.losses.items():
        loss += tf.math.divide_no_nan(total, sums.counts[group])
    true = grads.rows_once([*gradients.values()], dense=trainer.jit_compile)
    return gradients, Measured(loss, grads.global_norm(true))


def _divide(
    trainer: "Trainer", sums: GradientSums
) -> dict[int, grads.Gradient]:
    """The gradient of the global loss from sums over all replicas."""
    scale = _loss_factor(trainer)
    result: dict[int, grads.Gradient] = {}
    for group, found in sums.gradients.items():
        factor = tf.math.divide_no_nan(1.0, sums.counts[group])
        for i, gradient in found.items():
            divided = grads.scale(gradient, factor / scale)
            result[i] = grads.add(result.get(i), divided)
    for i, gradient in _regularizer_gradients(trainer.model).items():
        result[i] = grads.add(result.get(i), gradient)
    return result


def _loss_factor(trainer: "Trainer") -> tf.Tensor:
    """What the loss is multiplied by, so that float16 gradients fit."""
    loss_scale = trainer.parts.loss_scale
    if loss_scale is None:
        return tf.constant(1.0)
    # The sum of a batch would overflow where its mean does not.
    return loss_scale.value / trainer.batch_size


def _regularizer_gradients(model: keras.Model) -> dict[int, tf.Tensor]:
    """Equal on every replica, so never reduced: it counts once."""
    variables = loss_terms.regularized_variables(model)
    if not variables:
        return {}
    numbers = {id(v): i for i, v in enumerate(model.trainable_variables)}
    with tf.GradientTape() as tape:
        penalty = loss_terms.regularization(variables)
    found = tape.gradient(penalty, [v.value for v in variables])
    return {
        numbers[id(v)]: gradient
        for v, gradient in zip(variables, found, strict=True)
    }
