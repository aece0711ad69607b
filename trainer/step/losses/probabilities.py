"""Finds losses that take probabilities for logits, or the other way round."""

from typing import Any

import keras

from trainer.step.keras.private import layer_of
from trainer.step.losses.shapes import function_of_keras
from trainer.step.losses.targets import Output, type_of

_CATEGORICAL = {
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "sparse_categorical_crossentropy",
}
_BINARY = {"binary_crossentropy", "binary_focal_crossentropy"}
_BY_SHAPE = ("accuracy", "acc", "binary_accuracy", "BinaryAccuracy")


def what_is_odd(output: Output, metrics: Any) -> str | None:
    """A warning on an output, its loss and its metrics; `None` if they fit.

    Args:
        output: its last layer tells what it is.
        metrics: as they were given.
    """
    function, options = (
        function_of_keras(output.loss) if output.loss else (None, {})
    )
    if function is None or function not in _CATEGORICAL | _BINARY:
        return None
    kind = type_of(output.loss, function)
    activation = _activation_of(output.y_pred)
    wanted = "softmax" if function in _CATEGORICAL else "sigmoid"
    if options.get("from_logits"):
        if activation in ("softmax", "sigmoid"):
            return (
                f"The model ends with {activation}, so it gives probabilities, "
                f"but {kind}(from_logits=True) takes logits, and applies "
                f"{wanted} once more. Leave out from_logits, or the "
                "activation."
            )
        if function in _BINARY and activation == "linear":
            named = [m for m in keras.tree.flatten(metrics) if m in _BY_SHAPE]
            if named:
                return (
                    f"The metric {named[0]!r} compares outputs with 0.5, as in "
                    "Keras, but they are logits. Use keras.metrics."
                    "BinaryAccuracy(threshold=0)."
                )
        return None
    if activation == "linear":
        return (
            f"The model ends without an activation, so it gives logits, but "
            f"{kind} takes probabilities. Pass keras.losses.{kind}("
            f"from_logits=True), or end the model with activation={wanted!r}."
        )
    if activation == "softmax" and function in _BINARY and _width(output) == 1:
        return (
            "The model ends with the softmax of a single output, which is "
            "always 1. Use activation='sigmoid'."
        )
    return None


def _width(output: Output) -> int | None:
    shape = tuple(output.y_pred.shape)
    return shape[-1] if shape else None


def _activation_of(tensor: Any) -> str | None:
    """The name of the activation that a symbolic output ends with.

    Returns:
        `None` where it is not known.
    """
    layer = layer_of(tensor)
    while isinstance(layer, keras.Model):
        inner = list(getattr(layer, "outputs", None) or [])
        layer = layer_of(inner[0]) if len(inner) == 1 else None
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    known = (
        keras.layers.Dense,
        keras.layers.EinsumDense,
        keras.layers.Activation,
        keras.layers.Conv1D,
        keras.layers.Conv2D,
    )
    if not isinstance(layer, known):
        return None
    return getattr(layer.activation, "__name__", None)
