"""Loss sums with a global denominator.

With per-example losses l_i and weights w_i over the whole global batch

    loss = sum_i w_i * l_i / D  +  regularization

D is global: it counts the examples (or sums the weights) of all replicas and
micro-batches, as the Keras loss's own `reduction` says. A replica therefore
contributes undivided sums; the division comes after the reduction. See
`keras.losses.Loss` for the meaning of each reduction.
"""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras_hooks import keras_mask

EXAMPLES = "examples"  # The group of terms divided by the example count.
_MEANS = ("sum_over_batch_size", "mean")


@dataclasses.dataclass(frozen=True)
class Term:
    """One summand of the loss on one replica, before the division.

    Attributes:
        group: terms of equal group have equal denominators.
        total: float32 scalar, sum of w_i * l_i.
        count: float32 scalar, this replica's part of the denominator.
    """

    group: str
    total: tf.Tensor
    count: tf.Tensor


def loss_term(
    values: tf.Tensor,
    *,
    name: str,
    reduction: str | None,
    examples: tf.Tensor,
    parts: int,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
) -> Term:
    """Sums per-example losses the way a Keras reduction weighs them.

    Args:
        values: float of shape `[batch]` or `[batch, ...]`.
        name: the output's name, for a denominator of its own.
        reduction: a Keras loss reduction; `None` means
            `"sum_over_batch_size"`.
        examples: float32 scalar, the real examples on this replica.
        parts: how many replica pieces make a global batch; they share the
            denominator of `"sum"`, which is one.
        sample_weight: broadcasts against `values` as in Keras.
        mask: boolean, marks the values that count.

    Raises:
        UserError: `values` holds no value per example.
    """
    if values.shape.rank == 0:
        raise UserError(
            f"The loss {name!r} returned a scalar. Return one value per "
            "example, of shape [batch] or [batch, ...]: the Trainer divides "
            "by the global batch (a Keras loss: override call, not __call__)."
        )
    values = tf.cast(values, tf.float32)
    weighted, weight_sum = _weigh(values, sample_weight, mask)
    total = tf.reduce_sum(weighted)
    if reduction == "sum":
        return Term(f"{name}/sum", total, tf.constant(1.0 / parts))
    if reduction == "mean_with_sample_weight" and weight_sum is not None:
        return Term(f"{name}/weights", total, weight_sum)
    if mask is not None:
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        ratio = tf.math.divide_no_nan(_size(values), _size(mask))
        return Term(f"{name}/mask", total, valid * ratio)
    per_example = _static_size(values.shape[1:])
    if per_example is None:
        return Term(f"{name}/values", total, _size(values))
    return Term(EXAMPLES, total / per_example, examples)


def added_losses(model: keras.Model) -> tuple[list[tf.Tensor], list[Any]]:
    """Splits `model.losses` after a forward pass.

    Returns:
        The batch-dependent ones, from `add_loss` and activity regularizers
        (Keras means them as averages over the batch), and the variables that
        have a weight regularizer.
    """
    regularized = regularized_variables(model)
    losses = model.losses
    return losses[: len(losses) - len(regularized)], regularized


def regularized_variables(model: keras.Model) -> list[Any]:
    """The trainable variables that have a weight regularizer."""
    return [v for v in model.trainable_variables if v.regularizer is not None]


def regularization(variables: list[Any]) -> tf.Tensor:
    """The sum of the weight regularizers, a float32 scalar."""
    if not variables:
        return tf.constant(0.0)
    return tf.add_n(
        [tf.cast(v.regularizer(v), tf.float32) for v in variables]
    )


def per_output_losses(loss: Any, y: Any, y_pred: Any) -> dict[str, Any]:
    """Calls Keras losses so that each gives one value per example.

    Args:
        loss: one Keras loss for every output, or a structure of losses that
            matches the outputs.
        y: targets, with the outputs' structure.
        y_pred: the model's outputs.

    Returns:
        Output name to a pair of the loss and its values.
    """
    if isinstance(loss, dict):
        triples = {key: (loss[key], y[key], y_pred[key]) for key in loss}
    elif isinstance(loss, list | tuple):
        triples = {
            str(i): triple
            for i, triple in enumerate(zip(loss, y, y_pred, strict=True))
        }
    else:
        triples = {"loss": (loss, y, y_pred)}
    return {
        key: (one, _call(one, target, output), keras_mask(output))
        for key, (one, target, output) in triples.items()
    }


def _call(loss: keras.losses.Loss, y: Any, y_pred: Any) -> tf.Tensor:
    """The loss's own formula, without its reduction."""

    def convert(leaf: Any) -> tf.Tensor:
        return keras.ops.convert_to_tensor(leaf, dtype=loss.dtype)

    return loss.call(
        keras.tree.map_structure(convert, y),
        keras.tree.map_structure(convert, y_pred),
    )


def _weigh(
    values: tf.Tensor,
    sample_weight: tf.Tensor | None,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    weight = None
    if mask is not None:
        weight = tf.cast(mask, tf.float32)
    if sample_weight is not None:
        given = tf.cast(sample_weight, tf.float32)
        if weight is None:
            weight = given
        else:
            weight, given = _same_rank(weight, given)
            weight = weight * given
    if weight is None:
        return values, None
    values, weight = _same_rank(values, weight)
    return values * weight, tf.reduce_sum(weight)


def _same_rank(
    left: tf.Tensor, right: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Aligns ranks that differ by one, as Keras does for sample weights."""
    if left.shape.rank == right.shape.rank + 1:
        if left.shape[-1] == 1:
            return tf.squeeze(left, -1), right
        return left, right[..., tf.newaxis]
    if right.shape.rank == left.shape.rank + 1:
        if right.shape[-1] == 1:
            return left, tf.squeeze(right, -1)
        return left[..., tf.newaxis], right
    return left, right


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.size(tensor), tf.float32)


def _static_size(shape: tf.TensorShape) -> float | None:
    size = shape.num_elements()
    return None if size is None else float(size)
