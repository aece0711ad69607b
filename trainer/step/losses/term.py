"""`Term`: one summand of the loss, and how a reduction of Keras makes it."""

from typing import Any, NamedTuple

import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import keras_mask
from trainer.step.replica_batch import ReplicaBatch, align

EXAMPLES = "examples"  # The denominator that counts examples.


class Term(NamedTuple):
    """One summand of the loss on one replica, before the division.

    Attributes:
        denominator: its name; terms with one of equal name share it.
        total: float32 scalar, sum of w_i * l_i.
        count: float32 scalar, this replica's part of the denominator.
        logged: another count that logs divide by, and its name; `None` if it
            is the same.
    """

    denominator: str
    total: tf.Tensor
    count: tf.Tensor
    logged: tuple[str, tf.Tensor] | None = None

    def times(self, factor: float | None) -> "Term":
        """The same, weighed as a whole."""
        if factor is None:
            return self
        return self._replace(total=self.total * factor)

    def in_logs(self) -> "Term":
        """The term that is logged."""
        if self.logged is None:
            return self
        return Term(self.logged[0], self.total, self.logged[1])

    def of(self, here: ReplicaBatch) -> "Term":
        """The same; of no example it counts nothing."""
        total, count = here.or_zeros((self.total, self.count))
        # Each has its share of a denominator of 1.
        is_shared = self.denominator.endswith("/sum")
        kept = self.count if is_shared else count
        return self._replace(total=total, count=kept)


def loss_term(
    values: tf.Tensor,
    *,
    name: str,
    reduction: str | None,
    examples: tf.Tensor,
    shares: int,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    real: tf.Tensor | None = None,
    rows: tf.Tensor | None = None,
) -> Term:
    """Sums per-example losses the way a Keras reduction weighs them.

    Args:
        values: float of shape `[batch]` or `[batch, ...]`; Keras may have
            attached a mask to it, as it does for an `ignore_class`.
        name: the output's name, for a denominator of its own.
        reduction: a Keras loss reduction. Of `None` and `"none"`, `fit`
            minimizes the sum of the values, and logs their mean.
        examples: float32 scalar, the real examples on this replica.
        shares: how many replica batches make a global batch; they share the
            denominator of a sum, which is one.
        sample_weight: broadcasts against `values` as in Keras.
        mask: boolean, marks the values that count, as the output's mask does.
        real: float32 of shape `[batch]`, zero for rows of padding, whose
            weight must be zero too; `None` where there is none.
        rows: float32 scalar, the rows of the values, where these may be others
            than the examples; `None` where they are not.
    """
    if values.dtype.is_complex:
        raise UserError(f"The loss {name!r} is complex: return real numbers.")
    # Keras marks an ignore_class by a mask on the values.
    mask = _both(mask, keras_mask(values))
    values = tf.cast(values, tf.float32)
    if real is not None:
        # tf.where, not a product: zero times infinity is NaN.
        values = tf.where(align(real, values) > 0, values, 0.0)
        if mask is not None:
            mask = tf.logical_and(mask, align(real, mask) > 0)
    weighted, weight_sum = _weigh(values, sample_weight, mask)
    total = tf.reduce_sum(weighted)
    each: Any = values.shape[1:].num_elements()
    if each is None:
        # Values per example that are not known while tracing, such as ragged
        # lengths padded per batch.
        known = tf.cast(tf.shape(values)[0], tf.float32)
        each = tf.math.divide_no_nan(_size(values), known)
    if reduction in ("sum", "none", None):
        # The denominator is 1, of which each contributes its share.
        term = Term(f"{name}/sum", total, tf.constant(1.0 / shares))
        if reduction == "sum":
            return term
        count = each * (examples if rows is None else rows)
        return term._replace(logged=(f"{name}/values", count))
    if reduction == "mean_with_sample_weight" and weight_sum is not None:
        return Term(f"{name}/weights", total, weight_sum)
    if mask is not None:
        # Keras divides by the number of valid values. A mask may be [batch,
        # tokens] for values [batch, tokens, n]: each mark then stands for n
        # values.
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        ratio = tf.math.divide_no_nan(_size(values), _size(mask))
        return Term(f"{name}/mask", total, valid * ratio)
    if tf.is_tensor(each):
        count = each * (examples if rows is None else rows)
        return Term(f"{name}/values", total, count)
    # A mean over an example's values, so that all such outputs share one
    # denominator: the examples.
    total = total / each
    if rows is not None:
        total *= tf.math.divide_no_nan(examples, rows)
    return Term(EXAMPLES, total, examples)


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


def _both(left: tf.Tensor | None, right: tf.Tensor | None) -> tf.Tensor | None:
    """Combines two masks."""
    if left is None or right is None:
        return right if left is None else left
    left, right = _same_rank(left, right)
    return tf.cast(left, tf.bool) & tf.cast(right, tf.bool)


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.size(tensor), tf.float32)
