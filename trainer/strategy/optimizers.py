"""Builds optimizers for a model's weights, under the strategy's scope."""

import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import (
    count_steps_natively,
    replace_own_reduction,
)
from trainer.step.spec import Parts
from trainer.values.words import shown

# Options of Keras' optimizers that would not do here what they say.
_NOT_OF_KERAS = {
    "gradient_accumulation_steps": "does not work under a strategy. Use "
    "Trainer.accumulation_steps.",
    "use_ema": "would keep averages that nothing reads. Use "
    "Trainer.ema_momentum, which evaluates and exports with them.",
    "loss_scale_factor": "divides gradients of a loss that was not multiplied "
    "by it. Leave it out: precision = 'mixed_float16' brings a loss scale.",
}
_NUMBERS = (int, float, np.number, keras.Variable, tf.Variable)


def build_optimizers(
    model: keras.Model,
    trainable: list[Any],
    *,
    factory: Any,
    learning_rate: float | None,
) -> dict[str, keras.optimizers.Optimizer]:
    """Optimizers with their state, made for the present weights.

    Args:
        model: the model, whose layers may name optimizers.
        trainable: the weights.
        factory: `Trainer.optimizer`.
        learning_rate: `Trainer.learning_rate`.
    """
    if isinstance(factory, dict) and learning_rate is not None:
        raise UserError(
            f"learning_rate = {learning_rate}: there are several optimizers "
            f"({', '.join(factory)}). Set each one's own learning rate."
        )
    given = factory if isinstance(factory, dict) else {"optimizer": factory}
    found = {}
    for name, one in given.items():
        made = found[name] = _make_optimizer(one, learning_rate)
        # Built now: replicas cannot create variables, and a checkpoint is
        # restored before the first step.
        is_single = len(given) == 1
        made.build(trainable if is_single else _variables_of(model, name))
        _take_state(made, factory)
        replace_own_reduction(made)
        count_steps_natively(made)
    return found


def restart_optimizers(
    parts: Parts, factory: Any, learning_rate: float | None
) -> None:
    """Resets optimizers to their initial state for the present weights.

    Most start with zeros. ScheduleFreeAdamW keeps a copy of the weights, and a
    user's own optimizer may keep anything.
    """
    fresh = build_optimizers(
        parts.model,
        parts.trained,
        factory=factory,
        learning_rate=learning_rate,
    )
    for name, old in parts.optimizers.items():
        values = fresh[name].variables
        # Into the present variables: graphs and checkpoints know these.
        for variable, value in zip(old.variables, values, strict=True):
            variable.assign(value)


def _variables_of(model: keras.Model, optimizer: str) -> list[Any]:
    """The variables of one of several optimizers.

    Those of the layer that has its name, otherwise all.
    """
    for layer in model.layers:
        if layer.name == optimizer:
            return list(layer.trainable_variables)
    return list(model.trainable_variables)


def _make_optimizer(
    factory: Any, learning_rate: float | None
) -> keras.optimizers.Optimizer:
    if isinstance(factory, str):
        # Only its class is of use: this object has the default learning rate.
        factory = type(keras.optimizers.get(factory))
    optimizer, rate = factory, learning_rate
    if not isinstance(factory, keras.optimizers.Optimizer):
        options = {}
        # Passed to the constructor where that is possible: an optimizer may
        # derive other values from it.
        if rate is not None and (
            "learning_rate" in inspect.signature(factory).parameters
        ):
            # Keras takes no whole number for it.
            options, rate = {"learning_rate": float(rate)}, None
        optimizer = factory(**options)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UserError(
            f"Trainer.optimizer = {shown(factory)} returned "
            f"{shown(optimizer)}, not a Keras optimizer."
        )
    _refuse_own_versions(optimizer)
    if optimizer is factory or rate is not None:
        optimizer = _made_again(optimizer, rate)
    # Keras sees what a function returns for it only when a step is traced.
    rate = optimizer.learning_rate
    if not (keras.ops.is_tensor(rate) or isinstance(rate, _NUMBERS)):
        raise UserError(
            f"{type(optimizer).__name__}.learning_rate = {shown(rate)} must be "
            "a number, a schedule, or a function that returns a number."
        )
    return optimizer


def _made_again(
    given: keras.optimizers.Optimizer, learning_rate: float | None
) -> keras.optimizers.Optimizer:
    """An optimizer as the given one, whose variables are made in this scope."""
    try:
        config = given.get_config()
        if learning_rate is not None:
            config["learning_rate"] = float(learning_rate)
        return type(given).from_config(config)
    # Both are user code in a user's own optimizer.
    except Exception as error:
        raise UserError(
            f"The {type(given).__name__} cannot be made again from its "
            f"configuration ({type(error).__name__}), which a strategy's scope "
            "requires. Pass a function: Trainer(optimizer=lambda: ...)."
        ) from None


def _take_state(made: keras.optimizers.Optimizer, given: Any) -> None:
    """Goes on with the state of an optimizer that was used already.

    Raises:
        UserError: it was used for other weights.
    """
    if not isinstance(given, keras.optimizers.Optimizer) or not given.built:
        return
    if [v.shape for v in given.variables] != [v.shape for v in made.variables]:
        raise UserError(
            f"The {type(given).__name__} has been used for another model. Make "
            "a new one, or pass a function: Trainer(optimizer=lambda: ...)."
        )
    for variable, value in zip(made.variables, given.variables, strict=True):
        # What was set since, such as the learning rate, is in the new one.
        if variable is not made.learning_rate:
            variable.assign(value)


def _refuse_own_versions(optimizer: keras.optimizers.Optimizer) -> None:
    """Refuses options that Keras cannot keep under several replicas."""
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UserError(
            f"{name} decides on unreduced gradients, differently on each "
            "replica. Use the inner optimizer: precision = 'mixed_float16' "
            "brings a loss scale that all replicas agree on."
        )
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        raise UserError(
            f"{name} hides several optimizers in one. Pass a dict of "
            "optimizers to the Trainer, each by the name of its layer, and "
            "apply them in a train_step of your own."
        )
    for option, why in _NOT_OF_KERAS.items():
        if getattr(optimizer, option):
            raise UserError(f"{name}.{option} {why}")
