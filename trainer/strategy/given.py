"""A model that was given as an object, and copies of it."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime import fingerprints
from trainer.step.keras.private import (
    all_layers,
    lambda_options,
    native,
    put,
    symbolic_inputs,
)
from trainer.strategy.hand_over import (
    hand_over_attributes,
    hand_over_flags,
    hand_over_values,
)
from trainer.strategy.plugin import StrategyPlugin


def trains_itself(plugin: StrategyPlugin, variables: Iterable[Any]) -> bool:
    """Whether an object with these variables can be trained as it is.

    So it is with one replica in this process, on whose device they are.
    Elsewhere variables have to be made in the strategy's scope.
    """
    found = [native(one) for one in variables]
    if not belongs_to_none(found):
        return False
    with plugin.strategy.scope():
        if not tf.distribute.has_strategy():
            return True
    if not plugin.options.takes_stacks:
        return False
    (home,) = map(_place, plugin.devices())
    return all(_place(one.device) == home for one in found)


def belongs_to_none(variables: Iterable[Any]) -> bool:
    """Whether no strategy has made these variables its own."""
    return not any(
        hasattr(native(one), "distribute_strategy") for one in variables
    )


def _place(device: str) -> tuple[str | None, int | None]:
    found = tf.DeviceSpec.from_string(device)
    return found.device_type, found.device_index


class GivenModel:
    """A `keras.Model` from which a Trainer makes its own, and its weights.

    With one replica in this process it is trained itself. Otherwise a
    strategy's variables must be made in its scope: there a copy is trained,
    and its weights are put back into the given model after each call.

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
        self.is_trained = trains_itself(plugin, self.model.variables)
        if self.is_trained:
            return self.model
        made, self._known = self(), None
        # Of the layers of a model that is not built some may be, and adapted.
        if not self.model.built:
            self._hand_over(made)
        return made

    def take_over(self, made: keras.Model) -> None:
        """Gives a copy, which is built, all that the given model holds.

        Later on only weights and flags, if the user has changed them since
        the last call: steps have been traced with the rest, as in `fit`.

        Raises:
            UserError: the given model has other layers or weights by now, or
                an attribute that its copy cannot have.
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
                f"The model {self.model.name!r} has different layers or "
                "weights from its copy, which is trained in the strategy's "
                "scope. If you have changed it, make a new Trainer; otherwise "
                "pass a function that makes the model: Trainer(model=lambda: "
                "...)."
            )
        hand_over_flags(self.model, made)
        if self._known is None:
            self._hand_over(made)
        else:
            made.set_weights(self.model.get_weights())
        self._known = now

    def give_back(self, trained: keras.Model) -> None:
        """Puts the trained weights into the given model, which is built."""
        if not self.is_trained:
            self.model.set_weights(trained.get_weights())
            self._known = self._state()

    def _hand_over(self, made: keras.Model) -> None:
        hand_over_values(self.model, made)
        for own, its in zip(
            all_layers(self.model), all_layers(made), strict=True
        ):
            hand_over_attributes(own, its, f"The layer {own.name!r}")

    def _state(self) -> tuple[Any, ...]:
        """What tells whether weights or flags have changed."""
        digest = fingerprints.arrays(self.model.get_weights())
        flags = [layer.trainable for layer in all_layers(self.model)]
        flags += [weight.trainable for weight in self.model.weights]
        return digest, flags


def check_precision(model: keras.Model, precision: str | None) -> None:
    """Checks that a model has the precision that is asked for.

    Raises:
        UserError: its layers were made with another one.
    """
    own = model.dtype_policy.name
    if precision not in (None, own):
        raise UserError(
            f"precision = {precision!r} comes too late: the layers of the "
            f"model were already made with {own!r}. Pass a function that "
            "makes the model, or call keras.config.set_dtype_policy "
            "before you make it."
        )


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
        with keras.saving.custom_object_scope(classes), not_compiled(model):
            # Sequential and Functional, and no subclass of them.
            if kind.__module__.partition(".")[0] == "keras":
                return keras.models.clone_model(
                    model,
                    input_tensors=_sparse_inputs(model),
                    clone_function=_copy_of_layer,
                    recursive=True,
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


def _sparse_inputs(model: keras.Model) -> Any:
    """Inputs for a copy, which Keras would make dense; `None` if they are.

    A dense one refuses a sparse tensor that names a place twice.
    """
    if not any(one.sparse for one in symbolic_inputs(model).values()):
        return None
    return keras.tree.map_structure(
        lambda one: keras.Input(
            batch_shape=one.shape,
            dtype=one.dtype,
            sparse=one.sparse,
            name=one.name,
        ),
        model.input,
    )


def _copy_of_layer(layer: keras.Layer) -> keras.Layer:
    kind = type(layer)
    if kind is keras.layers.Lambda:
        return kind(**lambda_options(layer))
    # Keras gives any constructor a name and a dtype, and this takes neither.
    is_model = isinstance(layer, keras.Model)
    if is_model and not inspect.signature(kind).parameters:
        return kind()
    return kind.from_config(layer.get_config())


@contextlib.contextmanager
def not_compiled(model: keras.Model) -> Iterator[None]:
    """Hides that models are compiled, and their optimizers.

    Keras would compile their copies, and save the optimizers with them.
    """
    compiled = [
        (one, one.optimizer)
        for one in all_layers(model)
        if getattr(one, "compiled", False)
    ]
    for one, _ in compiled:
        one.compiled = False
        put(one, "optimizer", None)
    try:
        yield
    finally:
        for one, optimizer in compiled:
            one.compiled = True
            put(one, "optimizer", optimizer)
