"""Copies of models: with the same layers, and weights of their own."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import keras

from trainer.errors import UserError
from trainer.step.keras.private import all_layers, lambda_options


def copy_of(model: keras.Model) -> keras.Model:
    """A new model of the same configuration, with weights of its own.

    It is not compiled. Sequential and Functional models can be copied whatever
    their layers are; a class of the user's own must be one that its
    `get_config` describes, or whose constructor takes nothing.

    Raises:
        UserError: it cannot be made again from its configuration.
    """
    kind = type(model)
    # By name, as a layer may hold layers that are not registered with Keras.
    classes = {type(one).__name__: type(one) for one in all_layers(model)}
    try:
        with keras.saving.custom_object_scope(classes), _not_compiled(model):
            # Sequential and Functional, and no subclass of them.
            if kind.__module__.partition(".")[0] == "keras":
                return keras.models.clone_model(
                    model, clone_function=_copy_of_layer, recursive=True
                )
            return _copy_of_layer(model)
    # A configuration is user code, which can fail in any way.
    except Exception as error:
        raise UserError(
            f"A copy of the {kind.__name__} {model.name!r} is needed in the "
            "strategy's scope, but it cannot be made from get_config "
            f"({type(error).__name__}). Pass a function that makes the model: "
            "Trainer(model=lambda: ...)."
        ) from None


def _copy_of_layer(layer: keras.Layer) -> keras.Layer:
    kind = type(layer)
    if kind is keras.layers.Lambda:
        return kind(**lambda_options(layer))
    # Keras gives any constructor a name and a dtype, and this takes neither.
    is_model = isinstance(layer, keras.Model)
    if is_model and not inspect.signature(kind).parameters:
        return kind()
    return kind.from_config(layer.get_config())


@contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Hides that models are compiled, as Keras would compile their copies."""
    compiled = [
        one for one in all_layers(model) if getattr(one, "compiled", False)
    ]
    for one in compiled:
        one.compiled = False
    try:
        yield
    finally:
        for one in compiled:
            one.compiled = True
