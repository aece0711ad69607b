"""Computes outputs of layers once more in the backward pass, to save memory.

Training keeps what each layer computed until its gradient is taken. For the
layers that are named here it is computed again instead, by
`tf.recompute_grad` (Chen et al. 2016, "Training Deep Nets with Sublinear
Memory Cost"). What else a layer does in its call must not happen twice: in
the second pass it draws the random numbers of the first one, and assigns
nothing to its variables.
"""

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError, nearest
from trainer.step.context import step_context
from trainer.step.keras.private import (
    added_losses,
    all_layers,
    call_state,
    keras_mask,
    layer_metrics,
    native,
    set_keras_mask,
)


def recompute_layers(model: keras.Model, patterns: Sequence[str]) -> None:
    """Lets layers compute their outputs again in the backward pass.

    Args:
        model: the built model.
        patterns: names of its layers, such as `"block_*"`. Of a layer within
            another one that matches, nothing is kept in any case.

    Raises:
        UserError: a pattern fits no layer, or a layer cannot be computed
            twice.
    """
    layers = [layer for layer in all_layers(model) if layer is not model]
    names = [layer.name for layer in layers]
    within: set[int] = set()
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(
                f"Trainer.recompute: no layer is named {pattern!r}. "
                f"{nearest(pattern, names)}"
            )
    # A layer comes before those that are within it.
    for layer in layers:
        if id(layer) in within:
            continue
        if any(fnmatch.fnmatchcase(layer.name, one) for one in patterns):
            within.update(id(inner) for inner in all_layers(layer))
            _Recomputed(layer)


class _Recomputed:
    """A layer whose call is made again for its gradient.

    Args:
        layer: of the built model.

    Raises:
        UserError: what the layer does in a call cannot be done twice.
    """

    def __init__(self, layer: keras.Layer) -> None:
        for owner, metric in layer_metrics(layer):
            raise UserError(
                f"Trainer.recompute: the layer {layer.name!r} cannot be "
                f"computed twice, because {owner.name!r} updates the metric "
                f"{metric.name!r} as it is called."
            )
        self._layer = layer
        self._own_call = layer.call
        for variable in layer.variables:
            _assign_once(native(variable))
        # Not through Keras' own __setattr__, which would track the function.
        object.__setattr__(layer, "call", self._call)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        # Outside of a step nothing takes a gradient.
        if step_context.drawing is None:
            return self._own_call(*args, **kwargs)
        given = tf.nest.flatten((args, kwargs))
        places = [n for n, one in enumerate(given) if _has_gradient(one)]
        again = self._same_once_more()
        passes = iter((contextlib.nullcontext, again))

        def call(*tensors: tf.Tensor) -> Any:
            values = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                mask = keras_mask(given[place])
                if mask is not None:
                    set_keras_mask(tensor, mask)
                values[place] = tensor
            new_args, new_kwargs = tf.nest.pack_sequence_as(
                (args, kwargs), values
            )
            with next(passes, again)():
                outputs = self._own_call(*new_args, **new_kwargs)
            self._check_masks(outputs)
            return outputs

        outputs = tf.recompute_grad(call)(*(given[n] for n in places))
        self._check_losses()
        return outputs

    def _same_once_more(self) -> Callable[[], Any]:
        """A context in which the call that follows can be repeated."""
        in_step, as_called = step_context.as_of_now(), call_state()

        @contextlib.contextmanager
        def again() -> Iterator[None]:
            with (
                in_step(),
                as_called(),
                step_context.within(recomputing=True),
            ):
                yield

        return again

    def _check_masks(self, outputs: Any) -> None:
        # They would be lost. A layer's own mask is attached after its call.
        if any(keras_mask(one) is not None for one in tf.nest.flatten(outputs)):
            raise UserError(
                f"Trainer.recompute: the layer {self._layer.name!r} cannot be "
                "computed twice, because a mask is computed in its call. Name "
                "the layers within it or after it instead."
            )

    def _check_losses(self) -> None:
        # `tf.recompute_grad` hides from the tape what is not an output.
        for name, _ in added_losses(self._layer):
            raise UserError(
                f"Trainer.recompute: the layer {self._layer.name!r} cannot be "
                f"computed twice, because {name!r} calls add_loss."
            )


def _has_gradient(value: Any) -> bool:
    return tf.is_tensor(value) and value.dtype.is_floating


def _assign_once(variable: tf.Variable) -> None:
    """Makes assignments of the second pass do nothing."""

    def once(own: Callable[..., Any]) -> Callable[..., Any]:
        def assign(value: Any, *args: Any, **kwargs: Any) -> Any:
            if step_context.recomputing:
                return variable.read_value()
            return own(value, *args, **kwargs)

        return assign

    for name in ("assign", "assign_add", "assign_sub"):
        setattr(variable, name, once(getattr(variable, name)))
