"""Computes outputs of layers once more in the backward pass, to save memory.

Training keeps what each layer computed until its gradient is taken. For the
layers that are named here it is computed again instead, by
`tf.recompute_grad` (Chen et al. 2016, "Training Deep Nets with Sublinear
Memory Cost"). The other effects of a layer's call must not happen twice: in
the second pass it draws the random numbers of the first one, and assigns
nothing to its variables, see `trainer.step.keras.variables`.

`keras.RematScope` does not do: within a graph its layers take no keyword
arguments, such as `training`, and it draws different random numbers.
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
    attach,
    attached,
    call_state,
    keras_mask,
    layer_metrics,
    put,
    tensors_apart,
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
            _recompute(layer)


def _recompute(layer: keras.Layer) -> None:
    """Replaces the call of a layer by one that is made again.

    Raises:
        UserError: it has a metric, which would be updated twice.
    """
    own_call = layer.call
    for owner, metric in layer_metrics(layer):
        raise _cannot(
            layer,
            f"{owner.name!r} updates the metric {metric.name!r} as it is "
            "called.",
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        # Outside of a step nothing takes a gradient.
        if step_context.drawing is None:
            return own_call(*args, **kwargs)
        given = tf.nest.flatten((args, kwargs))
        places = [n for n, one in enumerate(given) if _has_gradient(one)]
        in_step, as_called = step_context.as_of_now(), call_state()
        is_first = True
        put_back: Callable[[Any], Any] = list

        @contextlib.contextmanager
        def once_more() -> Iterator[None]:
            with in_step(), as_called(), step_context.within(recomputing=True):
                yield

        def compute(*tensors: tf.Tensor) -> Any:
            nonlocal is_first, put_back
            values = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = attach(tensor, attached(given[place]))
            again = contextlib.nullcontext() if is_first else once_more()
            is_first = False
            with again:
                args, kwargs = tf.nest.pack_sequence_as(structure, values)
                outputs = own_call(*args, **kwargs)
            # They would be lost. A layer's own mask is attached after its call.
            if any(map(_has_mask, tf.nest.flatten(outputs))):
                raise _cannot(
                    layer,
                    "a mask is computed in its call. Name the layers within it "
                    "or after it instead.",
                )
            made, put_back = tensors_apart(outputs)
            return made

        structure = (args, kwargs)
        found = tf.recompute_grad(compute)(*(given[n] for n in places))
        outputs = put_back(found)
        # `tf.recompute_grad` hides from the tape what is not an output.
        for name, _ in added_losses(layer):
            raise _cannot(layer, f"{name!r} calls add_loss.")
        return outputs

    put(layer, "call", call)


def _cannot(layer: keras.Layer, why: str) -> UserError:
    return UserError(
        f"Trainer.recompute: the layer {layer.name!r} cannot be computed "
        f"twice, because {why}"
    )


def _has_gradient(value: Any) -> bool:
    return tf.is_tensor(value) and value.dtype.is_floating


def _has_mask(value: Any) -> bool:
    return keras_mask(value) is not None
