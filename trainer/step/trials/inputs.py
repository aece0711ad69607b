"""Checks the inputs of data against those that a model was made for."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import symbolic_inputs


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
    given = _by_name(x, wanted)
    for name, one in given.items():
        named = "x" if len(wanted) == 1 else f"x for {name!r}"
        _check_dtype(named, one, wanted[name])
        _check_shape(named, one, wanted[name], batch_size=batch_size)


def _by_name(x: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of x by the names of the model's inputs.

    Raises:
        UserError: there are others than the model takes.
    """
    names = ", ".join(map(repr, wanted))
    if isinstance(x, dict):
        missing = [name for name in wanted if name not in x]
        if not missing:
            # Keras passes over the others, as `fit` does.
            return {name: x[name] for name in wanted}
        alone = " Or give the array itself." if len(wanted) == 1 else ""
        raise UserError(
            f"x has no {missing[0]!r}: it is a dict with "
            f"{', '.join(map(repr, x))}, and the model's inputs are {names}."
            f"{alone}"
        )
    parts = keras.tree.flatten(x)
    if len(parts) != len(wanted):
        inputs = (
            f"{len(wanted)} inputs, {names}"
            if len(wanted) > 1
            else f"one input, {names}"
        )
        raise UserError(
            f"x has {len(parts)} array{'s' * (len(parts) != 1)}, but the model "
            f"has {inputs}."
        )
    return dict(zip(wanted, parts, strict=True))


def _check_dtype(name: str, given: Any, wanted: Any) -> None:
    if not hasattr(given, "dtype"):
        return
    found, expected = tf.as_dtype(given.dtype), tf.as_dtype(wanted.dtype)
    if found == tf.string != expected:
        raise UserError(
            f"{name} holds text, but the model takes {expected.name}. Make it "
            "numbers, such as with keras.layers.StringLookup or "
            "keras.layers.TextVectorization."
        )
    if expected == tf.string != found:
        raise UserError(f"{name} holds {found.name}, but the model takes text.")
    if found.is_complex and not expected.is_complex:
        raise UserError(
            f"{name} holds complex numbers, of which the model, which takes "
            f"{expected.name}, would see the real parts only. Give x.real, or "
            "stack x.real and x.imag."
        )


def _check_shape(
    name: str, given: Any, wanted: Any, *, batch_size: int | None
) -> None:
    shape = getattr(given, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return
    found, expected = tuple(shape)[1:], tuple(wanted.shape)[1:]
    # Keras adds or drops a last axis of one by itself.
    if found == (*expected, 1) or expected == (*found, 1):
        return
    if len(found) == len(expected) and all(
        a is None or b is None or a == b
        for a, b in zip(found, expected, strict=True)
    ):
        return
    raise UserError(
        f"{name} has shape {(batch_size, *found)}, the model takes "
        f"{(batch_size, *expected)}.{_reshape(found, expected)}".replace(
            "None", "?"
        )
    )


def _reshape(found: tuple[Any, ...], expected: tuple[Any, ...]) -> str:
    if None in found or None in expected:
        return ""
    if (
        tf.TensorShape(found).num_elements()
        == tf.TensorShape(expected).num_elements()
    ):
        return f" Use x.reshape({(-1, *expected)})."
    return ""
