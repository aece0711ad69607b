"""The terms of the loss for each output, with loss and sample weights."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import symbolic_outputs
from trainer.step.logs import StepLogs
from trainer.step.losses import loss_terms, shapes
from trainer.step.losses.outputs import Outputs
from trainer.step.losses.targets import Output
from trainer.step.reductions.sums import average
from trainer.step.spec import StepSpec


def check(spec: StepSpec) -> None:
    """Checks before the first step that losses are for outputs that exist.

    Raises:
        UserError: one is not; the outputs are listed.
    """
    y_pred = symbolic_outputs(spec.model)
    # A subclassed model has outputs only once it is called, and research code
    # may return others: then the traced step checks.
    if y_pred is None or spec.has_own("train_step") or spec.has_own("forward"):
        return
    if not spec.has_own("per_example_loss"):
        outputs = _outputs(spec, y_pred)
        _by_output(spec, outputs)
        _weights_by_output(spec, outputs)


def split(spec: StepSpec, y: Any, y_pred: Any) -> list[Output]:
    """Each output with its loss and its targets; see `Output`."""
    outputs = _outputs(spec, y_pred)
    names = [""] if outputs.is_single else outputs.names
    return [
        Output(*parts)
        for parts in zip(
            names,
            _by_output(spec, outputs),
            outputs.tensors(y),
            outputs.tensors(y_pred),
            strict=True,
        )
    ]


def targets(spec: StepSpec, y: Any, y_pred: Any) -> list[Any]:
    """The targets of each output."""
    return _outputs(spec, y_pred).tensors(y)


def per_example(spec: StepSpec, y: Any, y_pred: Any) -> Any:
    """The values of the Trainer's losses, before weights and division.

    Returns:
        A tensor for a single output, or output name to one.

    Raises:
        UserError: a loss is for no output, or an output's target is missing.
    """
    outputs = _outputs(spec, y_pred)
    chosen = _by_output(spec, outputs)
    targets, predicted = outputs.tensors(y), outputs.tensors(y_pred)
    if outputs.is_single:
        return loss_terms.per_example(chosen[0], targets[0], predicted[0])
    parts = zip(outputs.names, chosen, targets, predicted, strict=True)
    found = {}
    for name, loss, target, output in parts:
        # An output without a loss needs no target.
        if loss is None:
            continue
        if target is None:
            raise UserError(
                f"The data has no target for the output {name!r}, which has a "
                f"loss. Outputs: {', '.join(outputs.names)}."
            )
        found[name] = loss_terms.per_example(loss, target, output)
    return found


def terms(
    spec: StepSpec,
    values: Any,
    *,
    y_pred: Any,
    sample_weight: Any,
    rows: int | tf.Tensor,
    **options: Any,
) -> tuple[list[loss_terms.Term], StepLogs]:
    """The terms of a batch's loss, and each output's loss for the logs.

    Args:
        spec: whose losses choose the denominators.
        values: what `per_example_loss` returned.
        y_pred: the model's outputs.
        sample_weight: weights, a tensor or by output.
        rows: of the batch, padding among them.
        **options: see `trainer.step.losses.loss_terms`.

    Raises:
        UserError: a loss does not have one row for each example.
    """
    outputs = _outputs(spec, y_pred)
    if isinstance(values, list | tuple) and len(values) == len(outputs.names):
        values = dict(zip(outputs.names, values, strict=True))
    values = checked(spec, values, y_pred=y_pred, rows=rows)
    weights = _weights_by_output(spec, _parts(spec, outputs, values))
    # As `fit` does: with one loss nothing but "loss" is logged.
    if not isinstance(values, Mapping) or len(values) < 2:
        return _single(
            spec, outputs, values, y_pred, sample_weight, weights, options
        ), {}
    parts = _parts(spec, outputs, values)
    chosen = dict(zip(parts.names, _by_output(spec, parts), strict=True))
    predicted = _named(outputs, y_pred)
    given = _named(outputs, sample_weight)
    found, logs = [], {}
    # One by one: outputs may have different denominators.
    for name, value in values.items():
        (term,) = loss_terms.loss_terms(
            {name: value},
            loss={name: chosen.get(name)},
            y_pred={name: predicted.get(name)},
            sample_weight={name: given.get(name)},
            **options,
        )
        logs[f"{name}_loss"] = average(term.total, term.count)
        found.append(_scaled(term, weights.get(name)))
    return found, logs


def checked(
    spec: StepSpec, values: Any, *, y_pred: Any, rows: int | tf.Tensor
) -> Any:
    """The values of losses, with one row for each example.

    Raises:
        UserError: one has another number of rows.
    """
    outputs = _outputs(spec, y_pred)
    parts = _parts(spec, outputs, values)
    chosen: dict[str, Any] = {}
    if not spec.has_own("per_example_loss"):
        chosen = dict(zip(parts.names, _by_output(spec, parts), strict=True))
    predicted = _named(outputs, y_pred)
    named = isinstance(values, Mapping)

    def check(name: str, value: Any) -> tf.Tensor:
        known = parts.names[0] if parts.is_single and not named else name
        return shapes.check_rows(
            value,
            name=name,
            rows=rows,
            loss=chosen.get(known),
            y_pred=predicted.get(known),
        )

    if named:
        return {name: check(name, value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [check(str(i), value) for i, value in enumerate(values)]
    return check("loss", values)


def weights(
    spec: StepSpec, y: Any, sample_weight: Any, *, training: bool
) -> Any:
    """The sample weights of a loss, from the data or from the classes.

    Raises:
        UserError: there are both, or several outputs.
    """
    classes = spec.class_weight
    if classes is None or not training:
        return sample_weight
    if sample_weight is not None:
        raise UserError(
            "class_weight is given, and the data has sample weights as well. "
            "Choose one of them."
        )
    flat = keras.tree.flatten(y)
    if len(flat) != 1:
        raise UserError(
            f"class_weight is for a single output; the data has {len(flat)} "
            "targets. Use sample weights by output."
        )
    labels = tf.convert_to_tensor(flat[0])
    if labels.shape.rank > 1:
        if labels.shape[-1] == 1:
            labels = tf.squeeze(labels, -1)
        else:
            # One-hot vectors; [batch, 1] holds class numbers.
            labels = tf.argmax(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int64)
    # A lookup table, so that it works in a graph and on a TPU. Classes that are
    # not given weigh 1, as in Keras.
    table = [classes.get(i, 1.0) for i in range(max(classes, default=0) + 1)]
    # tf.gather fails, or returns zeros on a GPU, outside of the table.
    inside = (labels >= 0) & (labels < len(table))
    known = tf.gather(
        tf.constant(table, tf.float32), tf.where(inside, labels, 0)
    )
    return tf.where(inside, known, 1.0)


def in_floatx(y: Any) -> Any:
    """Targets in the precision that Keras' `fit` gives them."""
    floatx = tf.as_dtype(keras.config.floatx())

    def cast(leaf: Any) -> Any:
        if tf.is_tensor(leaf) and leaf.dtype == tf.float64:
            return tf.cast(leaf, floatx)
        return leaf

    return tf.nest.map_structure(cast, y)


def _outputs(spec: StepSpec, y_pred: Any) -> Outputs:
    return Outputs(y_pred, getattr(spec.model, "output_names", None))


def _parts(spec: StepSpec, outputs: Outputs, values: Any) -> Outputs:
    """The names of losses: those of outputs, or of `per_example_loss`."""
    named = isinstance(values, Mapping) and spec.has_own("per_example_loss")
    return Outputs(values) if named and values else outputs


def _by_output(spec: StepSpec, outputs: Outputs) -> list[Any]:
    """Each output's loss; a single one is for all of them."""
    loss = spec.loss
    if not isinstance(loss, Mapping | list | tuple):
        return [loss] * len(outputs.names)
    found = []
    for name, part in zip(
        outputs.names, outputs.split(loss, what="loss"), strict=True
    ):
        flat = keras.tree.flatten(part)
        if len(flat) > 1:
            raise UserError(
                f"The output {name!r} has {len(flat)} losses. Give it one, "
                "which may add them up."
            )
        found.append(flat[0] if flat else None)
    return found


def _weights_by_output(spec: StepSpec, outputs: Outputs) -> dict[str, float]:
    given = spec.loss_weights
    if given is None:
        return {}
    found = dict(
        zip(
            outputs.names,
            outputs.split(given, what="loss_weights"),
            strict=True,
        )
    )
    for name, weight in found.items():
        if not isinstance(weight, int | float | None):
            raise UserError(
                f"loss_weights has {weight!r} for the output {name!r}. Valid: "
                "a number."
            )
    return found


def _single(
    spec: StepSpec,
    outputs: Outputs,
    values: Any,
    y_pred: Any,
    sample_weight: Any,
    weights: dict[str, float],
    options: dict[str, Any],
) -> list[loss_terms.Term]:
    """The terms of one loss, in whatever structure it is given."""
    loss = spec.loss
    if outputs.is_single:
        (loss,) = _by_output(spec, outputs)
        (y_pred,) = outputs.tensors(y_pred)
        (sample_weight,) = outputs.tensors(sample_weight)
        if isinstance(values, Mapping) and values:
            (values,) = values.values()
    elif isinstance(values, Mapping):
        parts = _parts(spec, outputs, values)
        chosen = _by_output(spec, parts)
        loss = dict(zip(parts.names, chosen, strict=True))
        y_pred = _named(outputs, y_pred)
        sample_weight = _named(outputs, sample_weight)
    found = loss_terms.loss_terms(
        values,
        loss=loss,
        y_pred=y_pred,
        sample_weight=sample_weight,
        **options,
    )
    # There is one loss here, and the first weight is for it.
    names = list(values) if isinstance(values, Mapping) else outputs.names
    weight = weights.get(names[0]) if names else None
    return [_scaled(term, weight) for term in found]


def _named(outputs: Outputs, value: Any) -> dict[str, Any]:
    return dict(zip(outputs.names, outputs.tensors(value), strict=True))


def _scaled(term: loss_terms.Term, weight: float | None) -> loss_terms.Term:
    if weight is None:
        return term
    return loss_terms.Term(term.group, term.total * weight, term.count)
