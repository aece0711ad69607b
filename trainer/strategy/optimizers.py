"""Builds optimizers for a model's weights, under the strategy's scope."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import (
    bind_to,
    count_steps_natively,
    excludes_variables,
    is_of_keras,
    optimizer_config,
    replace_own_reduction,
    trained_by,
)
from trainer.step.spec import Parts
from trainer.strategy.checks import check_methods
from trainer.strategy.given import trains_itself
from trainer.strategy.hand_over import hand_over_attributes
from trainer.strategy.plugin import StrategyPlugin
from trainer.values.configurable import call_factory
from trainer.values.words import shown

# What of Keras' optimizers would not do here what it says: whether it does so
# on one device, and a reason.
_OPTIONS = {
    "loss_scale_factor": (
        False,
        "divides gradients of a loss that was not multiplied by it. Leave it "
        "out: precision = 'mixed_float16' brings a loss scale.",
    ),
    "gradient_accumulation_steps": (
        True,
        "works on one device only. Use Trainer.accumulation_steps.",
    ),
    "use_ema": (
        True,
        "works on one device only. Use Trainer.ema_momentum, which evaluates "
        "and exports with the averages.",
    ),
}
_KINDS = {
    keras.optimizers.LossScaleOptimizer: (
        False,
        "is returned by a function, whose scale would not be kept. Use the "
        "inner optimizer: precision = 'mixed_float16' brings a loss scale. Or "
        "give the object itself.",
    ),
    keras.optimizers.MultiOptimizer: (
        True,
        "works on one device only. Set strategy to 'default'; or pass a dict "
        "of optimizers, each by the name of its layer, and apply them in a "
        "train_step of your own.",
    ),
}
_Optimizer = keras.optimizers.Optimizer
_NUMBERS = (int, float, np.number, keras.Variable, tf.Variable)


def build_optimizers(
    model: keras.Model,
    trainable: list[Any],
    *,
    factory: Any,
    learning_rate: float | None,
    plugin: StrategyPlugin,
) -> dict[str, keras.optimizers.Optimizer]:
    """Optimizers with their state, made for the present weights.

    Args:
        model: the model, whose layers may name optimizers.
        trainable: the weights.
        factory: `Trainer.optimizer`.
        learning_rate: `Trainer.learning_rate`.
        plugin: the strategy. On one device an optimizer that was given is
            trained itself, and elsewhere a copy of it.
    """
    if isinstance(factory, dict) and learning_rate is not None:
        raise UserError(
            f"learning_rate = {learning_rate}: there are several optimizers "
            f"({', '.join(factory)}). Set each one's own learning rate."
        )
    factories = factory if isinstance(factory, dict) else {"optimizer": factory}
    found = {}
    for name, one in factories.items():
        is_single = len(factories) == 1
        variables = trainable if is_single else _variables_of(model, name)
        if isinstance(one, keras.optimizers.LossScaleOptimizer):
            one = one.inner_optimizer
        made = found[name] = (
            one
            if learning_rate is None and _is_for(one, variables, plugin)
            else _make_optimizer(one, learning_rate)
        )
        _check(made, plugin)
        is_copy = made is not one and isinstance(one, _Optimizer)
        if is_copy and excludes_variables(one):
            raise UserError(
                f"The {type(one).__name__} excludes variables from weight "
                "decay, but a copy of it would exclude different ones. "
                "Name them: exclude_from_weight_decay(var_names=[...])."
            )
        parts = made, *_inner(made)
        for part in parts:
            bind_to(part, tf.distribute.get_strategy())
        # Built now: replicas cannot create variables, and a checkpoint is
        # restored before the first step.
        if not made.built:
            made.build(variables)
        if is_copy:
            _take_state(made, one)
        for part in parts:
            bind_to(part, plugin.strategy)
            replace_own_reduction(part)
            count_steps_natively(part)
    return found


def restart_optimizers(
    parts: Parts, factory: Any, learning_rate: float | None, plugin: Any
) -> None:
    """Resets optimizers to their initial state for the present weights.

    Most start with zeros. ScheduleFreeAdamW keeps a copy of the weights, and a
    user's own optimizer may keep anything. They are made by functions: gin
    gives no others.
    """
    fresh = build_optimizers(
        parts.model,
        parts.trained,
        factory=factory,
        learning_rate=learning_rate,
        plugin=plugin,
    )
    for name, old in parts.optimizers.items():
        values = fresh[name].variables
        # Into the present variables: graphs and checkpoints know these.
        for variable, value in zip(old.variables, values, strict=True):
            variable.assign(value)


def by_part(
    optimizers: Mapping[str, keras.optimizers.Optimizer],
) -> dict[str, keras.optimizers.Optimizer]:
    """Optimizers by name; those within a `MultiOptimizer` by number, too."""
    found: dict[str, keras.optimizers.Optimizer] = {}
    for name, one in optimizers.items():
        inner = {f"{name}_{i}": part for i, part in enumerate(_inner(one))}
        found |= inner or {name: one}
    return found


def _inner(
    optimizer: keras.optimizers.Optimizer,
) -> Sequence[keras.optimizers.Optimizer]:
    """Those within a `MultiOptimizer`; none of any other."""
    return getattr(optimizer, "optimizers", None) or ()


def check_has_no_end(
    optimizers: Mapping[str, keras.optimizers.Optimizer],
) -> None:
    """Checks that optimizers need no end of training, which `fit` has.

    Raises:
        UserError: one writes weights then, and a run may continue.
    """
    for one in by_part(optimizers).values():
        if one.use_ema or not is_of_keras(one, "finalize_variable_values"):
            raise UserError(
                f"{type(one).__name__}.finalize_variable_values writes the "
                "weights at the end of fit. A run of train has no end, as it "
                "may continue: call fit, or use Trainer.ema_momentum."
            )


def follow_rates(parts: Parts, factory: Any, known: dict[str, float]) -> None:
    """Takes over a learning rate that was set on an optimizer as given.

    Args:
        parts: have the optimizers that train, which may be copies.
        factory: `Trainer.optimizer`.
        known: by name, what the rates were; changes.
    """
    for name, one, made in _copies(parts, factory):
        # A schedule, or a function, is shared with the copy.
        if isinstance(one.learning_rate, keras.Variable):
            now = _number(one.learning_rate)
            if known.setdefault(name, now) != now:
                made.learning_rate = known[name] = now


def give_back_states(
    parts: Parts, factory: Any, known: dict[str, float], *, with_rate: bool
) -> None:
    """Lets optimizers that had a state continue with that of their copies."""
    for name, one, made in _copies(parts, factory):
        if one.built:
            for variable, value in zip(
                one.variables, made.variables, strict=True
            ):
                if with_rate or variable is not one.learning_rate:
                    variable.assign(value)
            if name in known:
                known[name] = _number(one.learning_rate)


def _number(variable: keras.Variable) -> float:
    return float(keras.ops.convert_to_numpy(variable))


def _copies(parts: Parts, factory: Any) -> Iterator[tuple[str, Any, Any]]:
    """By name, the optimizers that were given, and the copies that train."""
    factories = factory if isinstance(factory, dict) else {"optimizer": factory}
    for name, given in factories.items():
        one = getattr(given, "inner_optimizer", given)
        made = parts.optimizers.get(name)
        if isinstance(one, _Optimizer) and made is not None and one is not made:
            yield name, one, made


def _is_for(one: Any, variables: list[Any], plugin: StrategyPlugin) -> bool:
    """Whether an optimizer that was given can itself train these."""
    if not isinstance(one, _Optimizer):
        return False
    if not trains_itself(plugin, one.variables):
        return False
    if not one.built:
        return True
    return [id(v) for v in trained_by(one)] == [id(v) for v in variables]


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
        optimizer = call_factory(factory, **options)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UserError(
            f"Trainer.optimizer = {shown(factory)} returned "
            f"{shown(optimizer)}, not a Keras optimizer."
        )
    if optimizer is factory or rate is not None:
        optimizer = _made_again(optimizer, rate)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return optimizer
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
        config = optimizer_config(given)
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


def _take_state(
    made: keras.optimizers.Optimizer, given: keras.optimizers.Optimizer
) -> None:
    """Goes on with what an optimizer holds, and with its state if it has any.

    Raises:
        UserError: it was used for other weights.
    """
    if given.built:
        shapes = [[v.shape for v in one.variables] for one in (given, made)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"The {type(given).__name__} has been used for another model. "
                "Make a new one, or pass a function: "
                "Trainer(optimizer=lambda: ...)."
            )
        for variable, value in zip(
            made.variables, given.variables, strict=True
        ):
            # What was set since, such as the learning rate, is in the new one.
            if variable is not made.learning_rate:
                variable.assign(value)
    elif not given.gradient_accumulation_steps:
        made.iterations.assign(given.iterations)
    hand_over_attributes(given, made, f"The {type(given).__name__}")


def _check(optimizer: keras.optimizers.Optimizer, plugin: Any) -> None:
    """Refuses what would do something else here than in `fit`."""
    name = type(optimizer).__name__
    check_methods(optimizer)
    is_alone = trains_itself(plugin, ())
    for kind, (on_one, why) in _KINDS.items():
        if isinstance(optimizer, kind) and not (on_one and is_alone):
            raise UserError(f"{name} {why}")
    for option, (on_one, why) in _OPTIONS.items():
        for part in by_part({name: optimizer}).values():
            if getattr(part, option) and not (on_one and is_alone):
                raise UserError(f"{name}.{option} {why}")
