"""Loss sums with a global denominator.

With per-example losses l_i and weights w_i over the whole global batch

    loss = sum_i w_i * l_i / D  +  regularization

D is global: it counts the examples (or sums the weights) of all replicas and
micro-batches, as the Keras loss's own `reduction` says. A replica therefore
contributes undivided sums; the division comes after the reduction. See
`keras.losses.Loss` for the meaning of each reduction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.data.batches import count_rows
from trainer.errors import UserError
from trainer.runtime.graph import converted
from trainer.step.checks import check_alike, check_rows
from trainer.step.keras.private import (
    added_losses,
    is_of_keras,
    keras_mask,
    loss_of_model,
)
from trainer.step.logs import LOSS_PART, StepLogs
from trainer.step.losses.keras_losses import KerasLoss
from trainer.step.losses.outputs import (
    OutputLoss,
    Outputs,
    losses_of,
    numbered_names,
    wanted_by,
)
from trainer.step.losses.term import EXAMPLES, Term, loss_term
from trainer.step.reductions.all_gather import all_gather
from trainer.step.reductions.sums import Average, average
from trainer.step.replica_batch import ReplicaBatch, is_weighted
from trainer.step.spec import AddedLosses, StepSpec

_STREAM = 3  # Random numbers other than those of the forward pass.


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
    predicted = keras.tree.flatten(y_pred)
    masks = [keras_mask(one) for one in predicted]
    weights = outputs.tensors(sample_weight, what="sample_weight")
    own = spec.has_own("per_example_loss")
    listed = _listed(spec, outputs, values)
    # As in Keras, but two outputs of one layer do not share a log.
    labels = numbered_names([f"{one.label}_loss" for one, _ in listed])
    found, logs = [], {}
    for (one, value), label in zip(listed, labels, strict=True):
        at = one.position
        if at is None:
            mask, weight = None, _weight_of(one.key, sample_weight)
            # In Keras a loss of several outputs has no mask.
            has_mask = own and any(m is not None for m in masks)
            is_dropped = has_mask or (
                weight is None and sample_weight is not None
            )
            if is_dropped:
                raise _is_whose(one.key, outputs.names)
        else:
            mask, weight = masks[at], weights[at]
        term = _term_of(
            one,
            value,
            own=own,
            y_pred=None if at is None else predicted[at],
            sample_weight=weight,
            mask=mask,
            here=here,
        )
        # As `fit` does: with one loss nothing but "loss" is logged.
        if len(listed) > 1:
            _, total, count, _ = term.in_logs().of(here)
            logs[label] = average(total, count)
        found.append(term.times(one.weight))
    return found, logs


def _term_of(
    one: OutputLoss,
    values: Any,
    *,
    own: bool,
    y_pred: Any,
    sample_weight: Any,
    mask: tf.Tensor | None,
    here: ReplicaBatch,
) -> Term:
    """The term of the values of a loss, or of what research code has for it."""
    reduction = getattr(one.loss, "reduction", "sum_over_batch_size")
    loss, rows = None if own else one.loss, None
    if here.is_whole and loss is not None:
        # As in Keras, whatever the rows of the values are.
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            if mask is None and sample_weight is None:
                reduction = "sum_over_batch_size"
            like = tf.shape(mask) if mask is not None else [here.rows]
            values = tf.fill(like, values)
        known, size = KerasLoss.of(loss), values.shape[0]
        is_known = known is not None and known.is_by_example
        if not is_known and (size is None or size != here.rows):
            rows = tf.cast(tf.shape(values)[0], tf.float32)
    else:
        values = check_rows(
            values, name=one.key, rows=here.rows, loss=loss, y_pred=y_pred
        )
    # A mask marks parts of an example, which a value for each has not.
    if loss is None and mask is not None and values.shape.rank == 1:
        mask = mask if mask.shape[1:].num_elements() == 1 else None
    return loss_term(
        values,
        name=one.key,
        reduction=reduction,
        examples=here.examples,
        shares=here.shares,
        sample_weight=sample_weight,
        mask=mask,
        real=here.real,
        rows=rows,
    )


def _listed(
    spec: StepSpec, outputs: Outputs, values: Any
) -> list[tuple[OutputLoss, Any]]:
    """Returns the values of `per_example_loss`, by loss.

    Of research code a position may be `None`, where the values are for several
    outputs, or for none.
    """
    own = spec.has_own("per_example_loss")
    names, several = outputs.names, len(outputs.names) > 1
    positions: list[int | None] = [*range(len(names))]
    given, flat = outputs, [values]
    if own and isinstance(values, Mapping) and values:
        # Research code may have other names than those of outputs.
        given, flat = Outputs(values), keras.tree.flatten(values)
        numbers = {name: i for i, name in enumerate(names)}
        parts = [(one, one.partition("/")[0]) for one in given.names]
        positions = [
            numbers.get(name, numbers.get(first)) if several else 0
            for name, first in parts
        ]
    losses = losses_of(spec.loss, spec.loss_weights, given)
    if own:
        # Of several losses of an output, research code returns one value.
        losses = [
            one
            for one in losses
            if one.position is not None and one.key == given.names[one.position]
        ]
    if isinstance(values, list | tuple):
        flat = list(values)
    elif not isinstance(values, Mapping):
        losses = [losses[0]._replace(key="loss")]
        positions = [None if several else 0]
    elif given is outputs:
        flat = [values.get(one.key) for one in losses]
    if len(flat) != len(losses):
        raise UserError(
            f"per_example_loss returned {len(flat)} losses for the outputs "
            f"{', '.join(names)}. Return one tensor, one for each output, or a "
            "dict by names of your own."
        )
    for i, one in enumerate(losses):
        at = None if one.position is None else positions[one.position]
        label = one.label if one.loss else one.key
        losses[i] = one._replace(position=at, label=label)
    pairs = zip(losses, flat, strict=True)
    return [(one, value) for one, value in pairs if value is not None]


def _is_whose(name: str, outputs: Sequence[str]) -> UserError:
    """Asks whose mask and sample weights a loss has."""
    return UserError(
        f"The loss {name!r} belongs to no single output, so its mask and "
        "sample weights are not known. In per_example_loss, return a dict, and "
        f"put the name of an output before it, as in '{outputs[0]}/{name}'."
    )


def _weight_of(name: str, sample_weight: Any) -> Any:
    """The sample weights of a loss that is for no output."""
    if isinstance(sample_weight, Mapping):
        return sample_weight.get(name)
    return None if keras.tree.is_nested(sample_weight) else sample_weight


def global_term(
    spec: StepSpec, y: Any, y_pred: Any, *, here: ReplicaBatch
) -> Term:
    """Returns what `global_loss` adds to the loss, on one replica.

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
    """Returns the losses that layers added in a forward pass.

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


def model_term(
    model: keras.Model, batch: Any, y_pred: Any, *, training: bool
) -> Term:
    """Returns a model's own `compute_loss`, for a whole global batch.

    Args:
        model: whose loss it is, with what layers have added.
        batch: `(x, y, sample_weight)`.
        y_pred: the outputs.
        training: whether to train or to evaluate.
    """
    x, y, weight = batch
    value = tf.convert_to_tensor(
        loss_of_model(model, x, y, y_pred, weight, training=training)
    )
    examples = tf.cast(count_rows((x, y)), tf.float32)
    # As in Keras, the gradient of a vector is that of its sum.
    total = tf.reduce_sum(tf.cast(value, tf.float32))
    return Term(EXAMPLES, total * examples, examples)


def kind_of_added(kinds: AddedLosses, layer: str) -> str | None:
    """Whether a layer adds a mean or a sum; `None` if that is not given."""
    return kinds.get(layer) if isinstance(kinds, dict) else kinds


def sums_of(terms: Sequence[Term], here: ReplicaBatch) -> dict[str, Average]:
    """The loss of a replica's batch: a sum for each denominator."""
    sums: dict[str, Average] = {}
    for name, total, count, _ in (one.of(here) for one in terms):
        # Terms of one denominator have the same count: it is not added up.
        before = sums.get(name)
        sums[name] = average(
            total if before is None else before.total + total, count
        )
    return sums


def loss_logs(
    model: keras.Model, terms: Sequence[Term], here: ReplicaBatch
) -> StepLogs:
    """The summands of the logged loss, regularization among them."""
    sums = sums_of([one.in_logs() for one in terms], here)
    logs: StepLogs = {LOSS_PART + name: one for name, one in sums.items()}
    # Equal on all replicas, and logs are summed over them: weighed by examples,
    # the sum is the penalty itself.
    penalty = regularization(regularized_variables(model))
    logs[LOSS_PART + "regularization"] = average(
        penalty * here.examples, here.examples
    )
    return logs


def regularized_variables(model: keras.Model) -> list[Any]:
    """The trainable variables that have a weight regularizer."""
    # A model that computes its loss adds the penalty itself.
    if not is_of_keras(model, "compute_loss"):
        return []
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
    outputs, found = Outputs.of(spec.model, y_pred), {}
    losses = losses_of(spec.loss, None, outputs)
    # An output without a loss needs no target.
    losses = [one for one in losses if one.loss is not None]
    wanted = wanted_by(losses)
    targets = outputs.tensors(y, wanted=wanted)
    predicted = keras.tree.flatten(y_pred)
    for position in wanted:
        if targets[position] is None:
            raise UserError(
                f"The data has no target for the output "
                f"{outputs.names[position]!r}, which has a loss. Outputs: "
                f"{', '.join(outputs.names)}."
            )
    for one in losses:
        given, made = (
            keras.tree.map_structure(parts.__getitem__, one.positions)
            for parts in (targets, predicted)
        )
        found[one.key] = values_of(one.loss, given, made)
    if len(outputs.names) == 1 and len(found) < 2:
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
