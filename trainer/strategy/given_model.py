"""A model that is given as an object, as Keras' own users have it."""

import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import (
    all_layers,
    compile_arguments,
    lambda_options,
    native,
)
from trainer.strategy.plugin import StrategyPlugin


class GivenModel:
    """A `keras.Model` from which a Trainer makes its own, and its weights.

    Without a `tf.distribute` strategy it is trained itself. A strategy's
    variables must be made in its scope: there a copy is trained, and its
    weights are put back into the given model after each call.

    Args:
        model: built or not, compiled or not.

    Attributes:
        is_trained: whether it is trained itself.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.is_trained = False
        # What the copy has been given, or has given back.
        self._known: tuple[Any, ...] | None = None

    def __call__(self) -> keras.Model:
        """A new model of the same configuration, with weights of its own.

        Raises:
            UserError: the model cannot be made again from its configuration.
        """
        return copy_of(self.model)

    def make(self, plugin: StrategyPlugin) -> keras.Model:
        """The model that is trained under a strategy."""
        with plugin.strategy.scope():
            is_plain = not tf.distribute.has_strategy()
        self.is_trained = is_plain and not any(
            hasattr(native(v), "distribute_strategy")
            for v in self.model.variables
        )
        return self.model if self.is_trained else self()

    def take_over(self, made: keras.Model) -> None:
        """Gives a copy, which is built, weights and `trainable` flags.

        Only if the user has changed them since the last call.

        Raises:
            UserError: the given model has other layers or weights by now.
        """
        if self.is_trained or not self.model.built:
            return
        now = self._state()
        if now == self._known:
            return
        layers = list(all_layers(self.model)), list(all_layers(made))
        shapes = [
            [tuple(v.shape) for v in m.weights] for m in (self.model, made)
        ]
        if len(layers[0]) != len(layers[1]) or shapes[0] != shapes[1]:
            raise UserError(
                f"The model {self.model.name!r} has other layers or weights "
                "than the copy of it that is trained in the strategy's scope. "
                "If you have changed it, make a new Trainer; otherwise pass a "
                "function that makes the model: Trainer(model=lambda: ...)."
            )
        # From the outside in, as a layer's flag sets those of its own layers.
        for own, its in zip(*layers, strict=True):
            if its.trainable != own.trainable:
                its.trainable = own.trainable
        made.set_weights(self.model.get_weights())
        self._known = now

    def give_back(self, trained: keras.Model) -> None:
        """Puts the trained weights into the given model, which is built."""
        if not self.is_trained:
            self.model.set_weights(trained.get_weights())
            self._known = self._state()

    def _state(self) -> tuple[Any, ...]:
        """What tells whether weights or flags have changed."""
        digest = hashlib.blake2b()
        for weight in self.model.get_weights():
            digest.update(weight.tobytes())
        flags = [layer.trainable for layer in all_layers(self.model)]
        return digest.digest(), flags

    def check_precision(self, precision: str | None) -> None:
        """Checks that the model has the precision that is asked for.

        Raises:
            UserError: its layers were made with another one.
        """
        own = self.model.dtype_policy.name
        if precision not in (None, own):
            raise UserError(
                f"precision = {precision!r} comes too late: the layers of the "
                f"model have been made with {own!r}. Pass a function that "
                "makes the model, or call keras.config.set_dtype_policy "
                "before you make it."
            )


def compiled_with(model: keras.Model) -> dict[str, Any]:
    """What a model was compiled with, as arguments of a Trainer.

    Returns:
        Those of `optimizer`, `loss`, `loss_weights`, `metrics` and
        `run_eagerly` that were given to `compile`; empty for a model that is
        not compiled.

    Raises:
        UserError: it was compiled with what a Trainer cannot honor.
    """
    given = compile_arguments(model)
    names = ("optimizer", "loss", "loss_weights", "metrics", "run_eagerly")
    found = {name: given.get(name) for name in names}
    weighted = given.get("weighted_metrics")
    if weighted:
        if found["metrics"]:
            raise UserError(
                "The model is compiled with metrics and with weighted_metrics. "
                "The Trainer weighs all metrics by the sample weights: pass "
                "Trainer(metrics=...)."
            )
        found["metrics"] = weighted
    return {name: one for name, one in found.items() if one is not None}


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
