"""Checks, before a step is traced, that targets fit outputs and losses."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.losses.shapes import function_of_keras

_CLASS_NUMBERS = "sparse_categorical_crossentropy"
# These compare a vector over the classes with another one.
_CLASS_VECTORS = {
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_hinge",
    "kl_divergence",
}
_TWO_CLASSES = {"binary_crossentropy", "binary_focal_crossentropy"}
_BY_VALUE = _TWO_CLASSES | {
    "huber",
    "log_cosh",
    "mean_absolute_error",
    "mean_squared_error",
}


class Output(NamedTuple):
    """An output of a model, its loss and its targets.

    Attributes:
        name: empty where there is only one.
        loss: a Keras loss; `None` where there is none.
        y: a spec or tensor of the targets, with an axis for the batch.
        y_pred: likewise, of the output.
    """

    name: str
    loss: keras.losses.Loss | None
    y: Any
    y_pred: Any


def check_shapes(output: Output, *, batch_size: int | None) -> None:
    """Checks the shape of targets against that of outputs.

    Args:
        output: of Keras' own losses; any other takes what it likes.
        batch_size: shown in messages.

    Raises:
        UserError: they do not fit.
    """
    function, _ = function_of_keras(output.loss) if output.loss else (None, {})
    y, y_pred = _shape(output.y), _shape(output.y_pred)
    if function is None or y is None or y_pred is None or len(y_pred) < 2:
        return
    classes = y_pred[-1]
    # [batch, 1] is as good as [batch] to Keras.
    flat = y[:-1] if len(y) == len(y_pred) and y[-1] == 1 else y
    wanted, instead = y_pred, ""
    if function == _CLASS_NUMBERS:
        if classes == 1:
            raise UserError(_one_output(output))
        wanted = y_pred[:-1]
        if _alike(flat, wanted):
            return
        if _alike(y, y_pred):
            instead = (
                " These are one-hot vectors: use CategoricalCrossentropy, or "
                "give class numbers, y.argmax(axis=-1)."
            )
    elif function in _CLASS_VECTORS:
        if classes == 1:
            raise UserError(_one_output(output))
        if _alike(y, y_pred):
            return
        if _alike(flat, y_pred[:-1]):
            instead = (
                " These are class numbers: use SparseCategoricalCrossentropy, "
                f"or give keras.utils.to_categorical(y, {classes})."
            )
    elif function in _BY_VALUE:
        if _alike(y, y_pred) or (
            classes == 1
            and _alike(flat, y_pred[:-1])
            and len(flat) < len(y_pred)
        ):
            return
        # Keras drops a last axis of one.
        if len(y) == len(y_pred) + 1 and y[-1] == 1 and _alike(y[:-1], y_pred):
            return
        # Keras repeats what has one column.
        if len(y) == len(y_pred) and 1 in (y[-1], classes):
            return
        if _alike(y, y_pred[:-1]):
            instead = (
                " By broadcasting, targets of one example would meet outputs "
                "of another: end the model with Dense(1), or for class "
                "numbers use SparseCategoricalCrossentropy."
            )
    else:
        return
    raise UserError(
        f"{_y(output)} has shape {_text(y, batch_size)}, "
        f"{type_of(output.loss, function)} wants {_text(wanted, batch_size)}"
        f" for outputs of shape {_text(y_pred, batch_size)}.{instead}"
    )


def check_values(output: Output, y: Any, weight: Any = None) -> None:
    """Checks the values of targets that are held in memory.

    Args:
        output: see `check_shapes`, which has been passed.
        y: all targets, an array with one row for each example.
        weight: their sample weights, of the first axes of `y`, if any.

    Raises:
        UserError: a target is none that the loss can take.
    """
    function, options = (
        function_of_keras(output.loss) if output.loss else (None, {})
    )
    if isinstance(y, tf.SparseTensor) or not hasattr(y, "dtype"):
        return
    values = np.asarray(y)
    if values.dtype.kind not in "biuf" or not values.size:
        return
    least, most = values.min(), values.max()
    if function == _CLASS_NUMBERS:
        classes = _shape(output.y_pred)
        count = classes[-1] if classes else None
        ignored = options.get("ignore_class")
        kept = values if ignored is None else values[values != ignored]
        if ignored is not None:
            least, most = (kept.min(), kept.max()) if kept.size else (0, 0)
        # Keras would round them down.
        broken = kept[kept != np.floor(kept)]
        if kept.dtype.kind == "f" and broken.size:
            raise UserError(
                f"{_y(output)} has the value {broken[0]:g}, but "
                f"{type_of(output.loss, function)} wants the numbers of "
                "classes, which are whole."
            )
        if count is None or (least >= 0 and most < count):
            return
        odd = most if least >= 0 else least
        start = " Number the classes from 0." if least == 1 else ""
        raise UserError(
            f"{_y(output)} has the class {odd:g}, but the model has {count} "
            f"outputs, for the classes 0 to {count - 1}.{start}"
        )
    if function in _TWO_CLASSES and (least < 0 or most > 1):
        # What does not count may mark that nothing is known.
        values = _that_count(values, weight)
        if not values.size or (values.min() >= 0 and values.max() <= 1):
            return
        least, most = values.min(), values.max()
        odd = most if most > 1 else least
        raise UserError(
            f"{_y(output)} has the value {odd:g}, but "
            f"{type_of(output.loss, function)} wants 0 and 1, or what lies "
            "between."
        )


def _that_count(values: np.ndarray, weight: Any) -> np.ndarray:
    """The values whose sample weight is not 0, in one axis."""
    if weight is None:
        return values.ravel()
    counts = np.asarray(weight) != 0
    if counts.ndim > 1 and counts.shape[-1] == 1:
        counts = counts[..., 0]
    if counts.shape != values.shape[: counts.ndim]:
        return values.ravel()
    return values[counts].ravel()


def type_of(loss: Any, function: str) -> str:
    """The name of a loss's class, also where the function was given."""
    name = type(loss).__name__
    if name != "LossFunctionWrapper":
        return name
    return "".join(part.capitalize() for part in function.split("_"))


def _one_output(output: Output) -> str:
    function, _ = function_of_keras(output.loss)
    return (
        f"The model has one output for each example, but "
        f"{type_of(output.loss, function or '')} wants one for each class. "
        "For two classes use BinaryCrossentropy, or end the model with "
        "Dense(2)."
    )


def _y(output: Output) -> str:
    return f"y[{output.name!r}]" if output.name else "y"


def _shape(part: Any) -> tuple[int | None, ...] | None:
    shape = getattr(part, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(None if size is None else int(size) for size in shape)


def _alike(left: Any, right: Any) -> bool:
    """Whether shapes are equal, but for the batch and unknown sizes."""
    return len(left) == len(right) and all(
        a is None or b is None or a == b
        for a, b in zip(left[1:], right[1:], strict=True)
    )


def _text(shape: Any, batch_size: int | None) -> str:
    return str((batch_size, *shape[1:])).replace("None", "?")
