"""Checks that inputs, targets, weights and losses make sense together.

`check_data` looks at specs, and at values that are in memory, before a step is
traced; `check_alike` and `check_rows` at tensors while it is. Whether layers
and losses mix the examples of a batch is tried elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.data.batches import Batches
from trainer.errors import UserError, at_run_time
from trainer.step.keras.private import (
    is_of_keras,
    is_optional,
    symbolic_inputs,
    symbolic_outputs,
)
from trainer.step.losses.keras_losses import KerasLoss
from trainer.step.losses.outputs import Outputs, losses_of, wanted_by
from trainer.step.spec import StepSpec

_Shape = tuple[int | None, ...]
# What helps where an array holds the wrong kind of values.
_KINDS = {
    "text": " Make it numbers, such as with keras.layers.StringLookup or "
    "keras.layers.TextVectorization.",
    "complex numbers": " Give the real part, or both on an axis.",
}
# What helps where targets have the shape of another kind.
_BROADCAST = (
    " By broadcasting, targets of one example would meet outputs of another: "
    "end the model with Dense(1), or for class numbers use "
    "SparseCategoricalCrossentropy."
)
_INSTEAD = {
    "number": " These are one-hot vectors: use CategoricalCrossentropy, or "
    "give class numbers, y.argmax(axis=-1).",
    "vector": " These are class numbers: use SparseCategoricalCrossentropy, or "
    "give one-hot vectors, by keras.utils.to_categorical(y).",
    "value": _BROADCAST,
    "two": _BROADCAST,
}


class _Output(NamedTuple):
    """An output of a model, and what the data has for it.

    Attributes:
        suffix: of names in messages, where there are several outputs.
        loss: a loss of Keras; `None` for any other, which takes what it likes.
        y_pred: the symbolic output.
        y: the spec of the targets.
        weight: the spec of the sample weights.
        held_y: the targets, where they are in memory.
        held_weight: the weights, where they are in memory.
    """

    suffix: str
    loss: KerasLoss | None
    y_pred: Any
    y: Any
    weight: Any
    held_y: Any
    held_weight: Any


def check_data(spec: StepSpec, batches: Batches) -> None:
    """Checks what can be known of data before a step is traced.

    Warns of targets that a loss takes, but hardly means.

    Args:
        spec: what the steps are made of. Where research code has a step, a
            loss or a forward pass of its own, that part is its own, too.
        batches: of any split.

    Raises:
        UserError: inputs do not fit the model, or targets do not fit a loss.
    """
    given, size = batches.element_spec, batches.batch_size
    own = {"train_step", "eval_step", "forward"} & spec.overridden
    if own or not (isinstance(given, tuple | dict) or hasattr(given, "shape")):
        return
    x, y, weight = keras.utils.unpack_x_y_sample_weight(given)
    own_loss = {"per_example_loss", "global_loss"} & spec.overridden
    own_loss |= set() if is_of_keras(spec.model, "compute_loss") else {"model"}
    given_loss = any(one is not None for one in keras.tree.flatten(spec.loss))
    if y is None and given_loss and not own_loss:
        raise UserError(
            "There is a loss, but the data yields dicts, which are inputs, and "
            "no targets. Let it yield (x, y), such as with dataset.map(lambda "
            "row: (row['x'], row['y']))."
            if isinstance(given, dict)
            else "There is a loss, but the data has no targets: give (x, y)."
        )
    check_inputs(spec.model, x, batch_size=size)
    y_pred = symbolic_outputs(spec.model)
    if y_pred is None or y is None or own_loss - {"global_loss"}:
        return
    outputs = Outputs.of(spec.model, y_pred)
    held: Sequence[Any] = (None, None, None)
    if batches.arrays is not None:
        arrays = keras.tree.lists_to_tuples(batches.arrays)
        held = keras.utils.unpack_x_y_sample_weight(arrays)
    losses = losses_of(spec.loss, spec.loss_weights, outputs)
    wanted = wanted_by(losses)
    predicted = keras.tree.flatten(y_pred)
    parts = [
        outputs.tensors(one, wanted=wanted) for one in (y, weight, *held[1:])
    ]
    for i, _, loss, *_ in losses:
        if i is None:
            continue
        suffix = f"[{outputs.names[i]!r}]" if len(outputs.names) > 1 else ""
        of_output = [part[i] for part in parts]
        one = _Output(suffix, KerasLoss.of(loss), predicted[i], *of_output)
        _check_target_shape(
            one.loss, one.y, predicted[i], name=f"y{suffix}", size=size
        )
        odd = _check_target_values(one)
        if loss is not None and one.weight is not None:
            _check_weights(one, size)
        if odd is not None and odd not in spec.tried:
            spec.tried.add(odd)  # Said once.
            logging.warning("%s", odd)


# Inputs.


def check_inputs(model: keras.Model, x: Any, *, batch_size: int | None) -> None:
    """Checks number, names, dtypes and shapes of inputs.

    Args:
        model: built or not; one whose `call` takes what it likes is not
            checked.
        x: specs or tensors of a batch.
        batch_size: shown in messages.

    Raises:
        UserError: an input differs; both are named.
    """
    wanted = symbolic_inputs(model)
    if not wanted:
        return
    for name, one in _inputs_by_name(x, wanted).items():
        named = "x" if len(wanted) == 1 else f"x for {name!r}"
        _check_kind(named, one, wanted[name].dtype, taker="the model")
        found, expected = _shape(one), tuple(wanted[name].shape)
        # Keras adds or drops a last axis of one by itself.
        if found is not None and not (
            _alike(found, expected)
            or _alike(found, (*expected, 1))
            or _alike((*found, 1), expected)
        ):
            texts = [_text(one, batch_size) for one in (found, expected)]
            raise UserError(
                f"{named} has shape {texts[0]}, the model takes {texts[1]}."
            )


def _inputs_by_name(x: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(x, dict):
        # Keras skips the others, as `fit` does.
        if all(name in x or is_optional(wanted[name]) for name in wanted):
            return {name: x[name] for name in wanted if name in x}
        found = f"is a dict with {', '.join(map(repr, x))}"
    else:
        parts = keras.tree.flatten(x)
        if len(parts) == len(wanted):
            return dict(zip(wanted, parts, strict=True))
        found = f"has {len(parts)} array{'s' * (len(parts) != 1)}"
    raise UserError(
        f"x {found}, but the model's inputs are "
        f"{', '.join(map(repr, wanted))}. Give a dict by these names, or one "
        "array for each."
    )


def _check_kind(name: str, given: Any, wanted: Any, *, taker: str) -> None:
    """Refuses text for numbers, numbers for text, complex for real ones."""
    if not hasattr(given, "dtype"):
        return
    found, expected = (
        "text"
        if dtype == tf.string
        else ("complex numbers" if dtype.is_complex else "real numbers")
        for dtype in map(tf.as_dtype, (given.dtype, wanted))
    )
    if found != expected != "complex numbers":
        raise UserError(
            f"{name} holds {found}, but {taker} takes {expected}."
            f"{_KINDS.get(found, '')}"
        )


# Targets and weights.


def check_alike(loss: KerasLoss | None, y: Any, y_pred: Any) -> None:
    """Refuses targets that do not fit outputs, while a step is traced.

    Raises:
        UserError: a loss of Keras gets targets of another shape.
    """
    if tf.is_tensor(y) and tf.is_tensor(y_pred):
        fits = y.shape[:1].is_compatible_with(y_pred.shape[:1])
        if loss is not None and loss.is_by_example and not fits:
            raise UserError(
                f"A batch has targets of shape {y.shape}, and outputs of shape "
                f"{y_pred.shape}: give one target for each example."
            )
        _check_target_shape(loss, y, y_pred, name="A batch of targets")


def _check_target_shape(
    loss: KerasLoss | None,
    targets: Any,
    outputs: Any,
    *,
    name: str,
    size: int | None = None,
) -> None:
    y, y_pred = _shape(targets), _shape(outputs)
    if loss is None or loss.targets not in _INSTEAD or not (y and y_pred):
        return
    classes, columns = y_pred[-1], y[-1]
    by_class = loss.targets in ("number", "vector")
    if by_class and len(y_pred) > 1 and classes == 1:
        raise UserError(
            f"The model has one output for each example, but {loss.title} "
            "wants one for each class. For two classes use BinaryCrossentropy, "
            "or end the model with Dense(2)."
        )
    # [batch, 1] is as good as [batch] to Keras.
    flat = y[:-1] if len(y) == len(y_pred) and columns == 1 else y
    is_vector, is_number = _alike(y, y_pred), _alike(flat, y_pred[:-1])
    wanted, fits, is_other = y_pred, is_vector, is_number
    if loss.targets == "number":
        wanted, fits, is_other = y_pred[:-1], is_number, is_vector
    elif not by_class:
        # Keras repeats what has one column, and drops a last axis of one.
        fits = (
            is_vector
            or (classes in (1, None) and _alike((*y, 1), y_pred))
            or (columns in (1, None) and _alike(y, (*y_pred, 1)))
            or (len(y) == len(y_pred) and 1 in (columns, classes))
        )
    if not fits:
        instead = _INSTEAD[loss.targets] if is_other else ""
        raise UserError(
            f"{name} has shape {_text(y, size)}, {loss.title} wants "
            f"{_text(wanted, size)} for outputs of shape "
            f"{_text(y_pred, size)}.{instead}"
        )


def _check_target_values(output: _Output) -> str | None:
    """Checks targets that are held in memory.

    Returns:
        A warning of those that a binary loss takes, but hardly means.
    """
    loss, name, y = output.loss, f"y{output.suffix}", output.held_y
    is_dense = hasattr(y, "dtype") and not isinstance(y, tf.SparseTensor)
    values = np.asarray(y) if is_dense else np.zeros(0)
    if loss is None or values.dtype.kind not in "biuf":
        return None
    if loss.targets == "two":
        kept = _that_count(values, output.held_weight)
        odd = kept[(kept < 0) | (kept > 1)]
        if odd.size:
            return (
                f"{name} has the value {odd[0]:g}, but {loss.title} expects "
                "values from 0 to 1."
            )
    count = (_shape(output.y_pred) or (None,))[-1]
    if loss.targets != "number" or count is None:
        return None
    values = values[values != loss.options.get("ignore_class")]
    odd = values[values != np.floor(values)]
    if odd.size:
        # Keras would round them down.
        raise UserError(
            f"{name} has the value {odd[0]:g}, but {loss.title} expects class "
            "numbers, which are whole."
        )
    odd = values[(values < 0) | (values >= count)]
    if odd.size:
        start = " Number the classes from 0." if values.min() == 1 else ""
        raise UserError(
            f"{name} has the class {odd.max():g}, but the model has {count} "
            f"outputs, for the classes 0 to {count - 1}.{start}"
        )
    return None


def _that_count(values: np.ndarray, weight: Any) -> np.ndarray:
    """The values whose sample weight is not 0: what does not count is free."""
    if weight is None:
        return values
    counts = np.asarray(weight) != 0
    if counts.ndim > 1 and counts.shape[-1] == 1:
        counts = counts[..., 0]
    is_by_row = counts.shape == values.shape[: counts.ndim]
    return values[counts] if is_by_row else values


def _check_weights(output: _Output, size: int | None) -> None:
    """Checks the spec of sample weights, and those held in memory."""
    name = f"sample_weight{output.suffix}"
    _check_kind(name, output.weight, tf.float32, taker="a loss")
    held = output.held_weight
    if held is not None and np.isnan(np.asarray(held, "float64")).any():
        raise UserError(
            f"{name} holds NaN, and the loss would be NaN. Give examples that "
            "do not count a weight of 0."
        )
    found, y_pred = _shape(output.weight), _shape(output.y_pred)
    if output.loss is None or found is None or y_pred is None:
        return
    # A loss of Keras has a value for each vector of the last axis.
    values = y_pred[:-1]
    rows = {(_shape(one) or (None,))[0] for one in (output.weight, output.y)}
    flat = found[:-1] if len(found) > 1 and found[-1] == 1 else found
    fits = (
        len(rows - {None}) < 2
        and len(flat) <= len(values)
        and all(
            a is None or b is None or a in (1, b)
            for a, b in zip(flat[1:], values[1:], strict=False)
        )
    )
    if not fits:
        raise UserError(
            f"{name} has shape {_text(found, found[0] or size)}, and the loss "
            f"one value for each of {_text(values, size)}."
        )


# The values of a loss.


def check_rows(
    values: Any,
    *,
    name: str,
    rows: int | tf.Tensor,
    loss: keras.losses.Loss | None,
    y_pred: Any,
) -> tf.Tensor:
    """Checks that a loss has a row for each example.

    Only then can examples be weighed, padding be left out, and the sum be
    divided by the global batch.

    Args:
        values: what the loss returned.
        name: the output's name.
        rows: of the batch; a number where it is known while tracing.
        loss: the Keras loss; `None` where it was computed otherwise.
        y_pred: the output.

    Returns:
        The same values. Where their shape is not known while tracing, the
        graph checks it.

    Raises:
        UserError: it is known that they have another number of rows.
    """
    known, values = KerasLoss.of(loss), tf.convert_to_tensor(values)
    if values.shape.rank is None:
        raise UserError(
            f"The number of axes of the loss {name!r} is not known while "
            "tracing. Return the shape [batch] or [batch, ...]: tf.squeeze "
            "needs its axis, such as tf.squeeze(values, -1)."
        )
    if values.shape.rank == 0:
        raise UserError(_scalar_sentence(name, known, y_pred))
    sentence = (
        f"The loss {name!r} must have one row for each example of the batch. "
        "Return the shape [batch] or [batch, ...]: where a model or a loss "
        "merges axes, as in [batch * tokens], give them back by "
        "tf.reshape(values, [batch, tokens]); where it reduces axis 0, which "
        "is the batch, let it reduce the others."
    )
    found = values.shape[0]
    if isinstance(rows, int) and found is not None:
        if found != rows:
            raise UserError(f"{sentence} Here it has {found} for {rows}.")
    # A loss that is known to keep examples apart needs no check in every step.
    elif known is None or not known.is_by_example:
        tf.debugging.assert_equal(
            tf.shape(values, tf.int64)[0],
            tf.cast(rows, tf.int64),
            message=at_run_time(sentence),
        )
    return values


def _scalar_sentence(name: str, known: KerasLoss | None, y_pred: Any) -> str:
    """What to do about a loss that is one number for the whole batch."""
    rank = getattr(getattr(y_pred, "shape", None), "rank", None)
    instead = (
        "Let it return the shape [batch] or [batch, ...], such as "
        "tf.reduce_mean(..., axis=-1)."
    )
    if known is not None and known.is_over_all:
        axes = tuple(range(1, rank or 0)) or (1,)
        kind = known.function.capitalize()
        instead = f"Give it the axes of an example: {kind}(axis={axes})."
    elif known is not None and rank == 1:
        instead = "Give output and targets the shape [batch, 1]."
    return (
        f"The loss {name!r} returned a scalar, but the Trainer needs one value "
        f"for each example, to divide by the global batch. {instead} For one "
        "value over the whole global batch override Trainer.global_loss."
    )


def _shape(part: Any) -> _Shape | None:
    shape = getattr(part, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(None if size is None else int(size) for size in shape)


def _alike(left: _Shape, right: _Shape) -> bool:
    """Whether shapes are equal, but for the batch and unknown sizes."""
    return len(left) == len(right) and all(
        a is None or b is None or a == b
        for a, b in zip(left[1:], right[1:], strict=True)
    )


def _text(shape: _Shape, batch_size: int | None) -> str:
    return str((batch_size, *shape[1:])).replace("None", "?")
