"""Checks, before a step is traced, that sample weights fit the losses."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.losses.shapes import function_of_keras
from trainer.step.losses.targets import Output


def check_weight(
    output: Output, weight: Any, held: Any, *, batch_size: int | None
) -> None:
    """Checks the weights of an output's examples.

    Args:
        output: with the loss that they weigh.
        weight: a spec or tensor of them, with an axis for the batch.
        held: all of them, where they are in memory.
        batch_size: shown in messages.

    Raises:
        UserError: they are not numbers, or not one for each value of the loss.
    """
    name = "sample_weight"
    if output.name:
        name += f"[{output.name!r}]"
    dtype = tf.as_dtype(weight.dtype)
    if dtype == tf.string or dtype.is_complex:
        what = "text" if dtype == tf.string else "complex numbers"
        raise UserError(f"{name} holds {what}. It must hold real numbers.")
    if held is not None and np.isnan(np.asarray(held, "float64")).any():
        raise UserError(
            f"{name} holds NaN, and the loss would be NaN. Give examples that "
            "do not count a weight of 0."
        )
    function, _ = function_of_keras(output.loss) if output.loss else (None, {})
    found = weight.shape
    values = getattr(output.y_pred, "shape", None)
    if function is None or values is None or found.rank is None:
        return
    # A loss of Keras has a value for each vector of the last axis.
    values = tuple(values)[:-1]
    flat = found[:-1] if found.rank > 1 and found[-1] == 1 else found
    fits = len(flat) <= len(values) and all(
        a is None or b is None or a == b or a == 1
        for a, b in zip(flat[1:], values[1:], strict=False)
    )
    if not fits:
        shapes = [
            str((batch_size, *shape[1:])).replace("None", "?")
            for shape in (tuple(found), values)
        ]
        raise UserError(
            f"{name} has shape {shapes[0]}, and the loss one value for each of "
            f"{shapes[1]}."
        )
