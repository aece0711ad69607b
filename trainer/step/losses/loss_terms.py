"""Loss sums with a global denominator.

With per-example losses l_i and weights w_i over the whole global batch

    loss = sum_i w_i * l_i / D  +  regularization

D is global: it counts the examples (or sums the weights) of all replicas and
micro-batches, as the Keras loss's own `reduction` says. A replica therefore
contributes undivided sums; the division comes after the reduction. See
`keras.losses.Loss` for the meaning of each reduction.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted
from trainer.step.checks import check_alike, check_rows
from trainer.step.keras.private import added_losses, keras_mask
from trainer.step.logs import LOSS_PART, StepLogs
from trainer.step.losses.keras_losses import KerasLoss
from trainer.step.losses.outputs import (
    Outputs,
    loss_weights_of,
    losses_of,
    numbered_names,
)
from trainer.step.reductions.all_gather import all_gather
from trainer.step.reductions.sums import Average, average
from trainer.step.replica_batch import ReplicaBatch, align, is_weighted
from trainer.step.spec import AddedLosses, StepSpec

EXAMPLES = "examples"  # The denominator that counts examples.
_STREAM = 3  # Random numbers other than those of the forward pass.


class Term(NamedTuple):
    """One summand of the loss on one replica, before the division.

    Attributes:
        denominator: its name; terms with one of equal name share it.
        total: float32 scalar, sum of w_i * l_i.
        count: float32 scalar, this replica's part of the denominator.
    """

    denominator: str
    total: tf.Tensor
    count: tf.Tensor

    def of(self, here: ReplicaBatch) -> "Term":
        """The same; of no example it counts nothing."""
        total, count = here.or_zeros((self.total, self.count))
        # Each has its share of a denominator of 1.
        is_shared = self.denominator.endswith("/sum")
        return Term(self.denominator, total, self.count if is_shared else count)


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
) -> Term:
    """Sums per-example losses the way a Keras reduction weighs them.

    Args:
        values: float of shape `[batch]` or `[batch, ...]`; Keras may have
            attached a mask to it, as it does for an `ignore_class`.
        name: the output's name, for a denominator of its own.
        reduction: a Keras loss reduction; `None` means
            `"sum_over_batch_size"`.
        examples: float32 scalar, the real examples on this replica.
        shares: how many replica batches make a global batch; they share the
            denominator of `"sum"`, which is one.
        sample_weight: broadcasts against `values` as in Keras.
        mask: boolean, marks the values that count, as the output's mask does.
        real: float32 of shape `[batch]`, zero for rows of padding, whose
            weight must be zero too; `None` where there is none.

    """
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
    if reduction == "sum":
        # The denominator is 1, of which each contributes its share.
        return Term(f"{name}/sum", total, tf.constant(1.0 / shares))
    if reduction == "mean_with_sample_weight" and weight_sum is not None:
        return Term(f"{name}/weights", total, weight_sum)
    if mask is not None:
        # Keras divides by the number of valid values. A mask may be [batch,
        # tokens] for values [batch, tokens, n]: each mark then stands for n
        # values.
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        ratio = tf.math.divide_no_nan(_size(values), _size(mask))
        return Term(f"{name}/mask", total, valid * ratio)
    per_example = values.shape[1:].num_elements()
    if per_example is None:
        # Values per example that are not known while tracing, such as ragged
        # lengths padded per batch.
        rows = tf.cast(tf.shape(values)[0], tf.float32)
        each = tf.math.divide_no_nan(_size(values), rows)
        return Term(f"{name}/values", total, each * examples)
    # A mean over an example's values, so that all such outputs share one
    # denominator: the examples.
    return Term(EXAMPLES, total / per_example, examples)


def terms(
    spec: StepSpec,
    values: Any,
    *,
    y_pred: Any,
    sample_weight: Any,
    here: ReplicaBatch,
) -> tuple[list[Term], StepLogs]:
    """The terms of a batch's loss, and each output's loss for the logs.

    Args:
        spec: whose losses choose the denominators.
        values: what `per_example_loss` returned.
        y_pred: the model's outputs.
        sample_weight: weights, a tensor or by output.
        here: the replica's batch.

    Raises:
        UserError: a loss does not have one row for each example.
    """
    outputs = Outputs.of(spec.model, y_pred)
    own = spec.has_own("per_example_loss")
    listed = _by_position(outputs, values, own=own)
    losses = losses_of(spec.loss, listed.outputs)
    factors = loss_weights_of(spec.loss_weights, listed.outputs)
    predicted = keras.tree.flatten(y_pred)
    weights = outputs.tensors(sample_weight, what="sample_weight")
    present = [i for i, value in enumerate(listed.values) if value is not None]
    # As in Keras, but two outputs of one layer do not share a log.
    labels = numbered_names(
        [f"{listed.outputs.labels[i]}_loss" for i in present]
    )
    found, logs = [], {}
    for i, label in zip(present, labels, strict=True):
        name, output = listed.names[i], listed.positions[i]
        if output is not None:
            mask, weight = keras_mask(predicted[output]), weights[output]
        else:
            mask, weight = None, _weight_of(name, sample_weight)
        rowed = check_rows(
            listed.values[i],
            name=name,
            rows=here.rows,
            loss=None if own else losses[i],
            y_pred=None if output is None else predicted[output],
        )
        term = loss_term(
            rowed,
            name=name,
            reduction=getattr(losses[i], "reduction", None),
            examples=here.examples,
            shares=here.shares,
            sample_weight=weight,
            mask=mask,
            real=here.real,
        )
        # As `fit` does: with one loss nothing but "loss" is logged.
        if len(present) > 1:
            _, total, count = term.of(here)
            logs[label] = average(total, count)
        factor = factors[i]
        if factor is not None:
            term = term._replace(total=term.total * factor)
        found.append(term)
    return found, logs


class _Listed(NamedTuple):
    """Losses by position.

    Attributes:
        outputs: what losses and weights are for: the model's, or those that
            `per_example_loss` names.
        names: of the losses.
        values: with one row for each example; `None` for an output without.
        positions: of the output whose mask and sample weights count; `None`
            for values of research code that are for none.
    """

    outputs: Outputs
    names: list[str]
    values: list[Any]
    positions: list[int | None]


def _by_position(outputs: Outputs, values: Any, *, own: bool) -> _Listed:
    """What `per_example_loss` returned, as a list."""
    names, several = outputs.names, len(outputs.names) > 1
    if own and isinstance(values, Mapping) and values:
        # Research code may have other names than those of outputs.
        given = Outputs(values)
        numbers = {name: i for i, name in enumerate(names)}
        positions = [numbers.get(name) for name in given.names]
        if not several and len(positions) == 1:
            positions = [0]
        flat = keras.tree.flatten(values)
        return _Listed(given, given.names, flat, positions)
    if isinstance(values, Mapping):
        listed = [values.get(name) for name in names]
    elif isinstance(values, list | tuple):
        listed = list(values)
    else:
        return _Listed(outputs, ["loss"], [values], [None if several else 0])
    if len(listed) != len(names):
        raise UserError(
            f"per_example_loss returned {len(listed)} losses for the outputs "
            f"{', '.join(names)}. Return one tensor, one for each output, or a "
            "dict by names of your own."
        )
    return _Listed(outputs, names, listed, [*range(len(names))])


def _weight_of(name: str, sample_weight: Any) -> Any:
    """The sample weights of a loss that is for no output."""
    if isinstance(sample_weight, Mapping):
        return sample_weight.get(name)
    return None if keras.tree.is_nested(sample_weight) else sample_weight


def global_term(
    spec: StepSpec, y: Any, y_pred: Any, *, here: ReplicaBatch
) -> Term:
    """What `Trainer.global_loss` adds to the loss, on one replica.

    Every replica computes it from the outputs of all replicas, and weighs it by
    its share of the examples. So the replicas' losses add up to the loss, and
    their gradients to its gradient.

    Args:
        spec: whose loss it is.
        y: targets.
        y_pred: outputs.
        here: the replica's batch.

    Raises:
        UserError: there are sample weights or padding, which it would not
            honor, or it is not a scalar.
    """
    name = f"{type(spec.methods).__name__}.global_loss"
    _check_batch(spec, here, name)
    whole = all_gather((y, y_pred)).values
    # All replicas draw what the first one draws, or they would compute
    # different losses.
    step = spec.parts.step.read_value()
    with spec.parts.randomness.at(step, 0, _STREAM, replica=0):
        found = converted(spec.methods.global_loss)(*whole)
    value = tf.convert_to_tensor(found)
    if value.shape.rank != 0:
        raise UserError(
            f"{name} returned the shape {value.shape}. Return a scalar, such "
            "as tf.reduce_mean(...)."
        )
    # Divided by the examples of all replicas after the reduction.
    total = tf.cast(value, tf.float32) * here.examples
    return Term(EXAMPLES, total, here.examples)


def _check_batch(spec: StepSpec, here: ReplicaBatch, name: str) -> None:
    if is_weighted(here.batch):
        raise UserError(
            f"The data has sample weights, which {name} does not get. Yield "
            "them among the targets, and apply them there."
        )
    if here.real is None:
        return
    data = spec.batches("eval")
    # Where all batches are full there is no padding, in spite of the static
    # shapes.
    if data.last_size is None or data.last_size != data.batch_size:
        raise UserError(
            f"{name} cannot tell examples from padding, which the last "
            f"evaluation batch gets under the strategy {spec.plugin.name!r}."
            " Choose a batch_size that divides the evaluation data."
        )


def added_terms(
    model: keras.Model, here: ReplicaBatch, kinds: AddedLosses = None
) -> list[Term]:
    """What `add_loss` and activity regularizers added in a forward pass.

    In Keras they are averages over the batch, so each is weighed by the number
    of examples. An average over a padded batch includes its padding.

    Args:
        model: whose layers added them.
        here: the batch that they were added for.
        kinds: what is a sum over the batch instead, see `Trainer`.
    """
    sums: list[tf.Tensor] = []
    means: list[tf.Tensor] = []
    for layer, value in added_losses(model):
        is_sum = kind_of_added(kinds, layer) == "sum"
        (sums if is_sum else means).append(tf.cast(value, tf.float32))
    terms = []
    if means:
        total = tf.add_n(means) * here.examples
        terms.append(Term(EXAMPLES, total, here.examples))
    if sums:
        # As for the reduction "sum": a denominator of 1, which is shared.
        share = tf.constant(1.0 / here.shares)
        terms.append(Term("added/sum", tf.add_n(sums), share))
    return terms


def kind_of_added(kinds: AddedLosses, layer: str) -> str | None:
    """Whether a layer adds a mean or a sum; `None` if that is not given."""
    return kinds.get(layer) if isinstance(kinds, dict) else kinds


def sums_of(terms: Sequence[Term], here: ReplicaBatch) -> dict[str, Average]:
    """The loss of a replica's batch: a sum for each denominator."""
    sums: dict[str, Average] = {}
    for name, total, count in (one.of(here) for one in terms):
        # Terms of one denominator have the same count: it is not added up.
        before = sums.get(name)
        sums[name] = average(
            total if before is None else before.total + total, count
        )
    return sums


def loss_logs(
    model: keras.Model, sums: Mapping[str, Average], examples: tf.Tensor
) -> StepLogs:
    """The summands of the logged loss, regularization among them."""
    logs: StepLogs = {LOSS_PART + name: one for name, one in sums.items()}
    # Equal on all replicas, and logs are summed over them: weighed by examples,
    # the sum is the penalty itself.
    penalty = regularization(regularized_variables(model))
    logs[LOSS_PART + "regularization"] = average(penalty * examples, examples)
    return logs


def regularized_variables(model: keras.Model) -> list[Any]:
    """The trainable variables that have a weight regularizer."""
    return [v for v in model.trainable_variables if v.regularizer is not None]


def regularization(variables: list[Any]) -> tf.Tensor:
    """The sum of the weight regularizers, a float32 scalar."""
    if not variables:
        return tf.constant(0.0)
    # Under mixed precision a regularizer may give float16.
    return tf.add_n([tf.cast(v.regularizer(v), tf.float32) for v in variables])


def per_example(spec: StepSpec, y: Any, y_pred: Any) -> Any:
    """The values of the Trainer's losses, before weights and division.

    Returns:
        A tensor of shape `[batch]` or `[batch, ...]` for a single output, or
        output name to one.

    Raises:
        UserError: a loss is for no output, or an output's target is missing.
    """
    outputs = Outputs.of(spec.model, y_pred)
    targets, predicted = outputs.tensors(y), keras.tree.flatten(y_pred)
    found = {}
    for i, loss in enumerate(losses_of(spec.loss, outputs)):
        # An output without a loss needs no target.
        if loss is None:
            continue
        name = outputs.names[i]
        if targets[i] is None:
            raise UserError(
                f"The data has no target for the output {name!r}, which has a "
                f"loss. Outputs: {', '.join(outputs.names)}."
            )
        found[name] = values_of(loss, targets[i], predicted[i])
    if len(outputs.names) == 1:
        return next(iter(found.values()), {})
    return found


def values_of(loss: keras.losses.Loss, y: Any, y_pred: Any) -> tf.Tensor:
    """A Keras loss without its reduction."""

    # Keras' Loss.__call__ does the same before it calls `call`.
    def convert(leaf: Any) -> tf.Tensor:
        return keras.ops.convert_to_tensor(leaf, dtype=loss.dtype)

    y = keras.tree.map_structure(convert, y)
    y_pred = keras.tree.map_structure(convert, y_pred)
    check_alike(KerasLoss.of(loss), y, y_pred)
    return converted(loss.call)(y, y_pred)


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
    """What passes both masks."""
    if left is None or right is None:
        return right if left is None else left
    left, right = _same_rank(left, right)
    return tf.cast(left, tf.bool) & tf.cast(right, tf.bool)


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.size(tensor), tf.float32)
