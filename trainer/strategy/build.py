"""Builds model, optimizers, metrics and state variables in the scope."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.divergence_guard import GuardState
from trainer.step.ema import MovingAverage
from trainer.step.keras import batch_norm
from trainer.step.keras.private import (
    all_layers,
    compile_for_callbacks,
    native,
    separate_added_losses,
)
from trainer.step.keras.recompute import recompute_layers
from trainer.step.keras.untracked import Untracked
from trainer.step.keras.variables import NotedVariables, take_over_assignments
from trainer.step.loss_scale import LossScale
from trainer.step.metrics.metric_set import build_metrics
from trainer.step.rng import StepRandomness
from trainer.step.spec import Parts
from trainer.strategy.checks import (
    check_added_losses,
    check_dtypes,
    check_eager,
    check_steps_of_model,
)
from trainer.strategy.optimizers import build_optimizers
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.recipe import Recipe
from trainer.values.configurable import call_factory


def build_parts(
    plugin: StrategyPlugin,
    recipe: Recipe,
    *,
    call_once: Callable[[keras.Model], None],
) -> Parts:
    """Makes what a recipe says under the strategy's scope.

    Args:
        plugin: owns the scope.
        recipe: what is made of what.
        call_once: calls a model that is not built yet on a batch.

    Raises:
        UserError: a factory is not one, or an option cannot be honored.
    """
    # All processes of a cluster draw the same initial weights.
    noted = NotedVariables()
    with contextlib.ExitStack() as exits:
        exits.enter_context(_seeded(recipe.seed))
        with plugin.scope():
            with tf.variable_creator_scope(noted):
                made = _model_in_scope(plugin, recipe, call_once)
            # After the model is built: its layers have made their variables,
            # and the optimizers, which assign equal values, have not.
            take_over_assignments(made, noted)
        trainable = made.trainable_variables
        with _scope_of(trainable, plugin), tf.variable_creator_scope(noted):
            optimizers = build_optimizers(
                made,
                trainable,
                factory=recipe.optimizer or "adam",
                learning_rate=recipe.learning_rate,
                plugin=plugin,
            )
        compile_for_callbacks(made, next(iter(optimizers.values())))
        exits.enter_context(plugin.scope())
        # Variables that this framework makes are either in checkpoints, or
        # need not be.
        ours = NotedVariables()
        with tf.variable_creator_scope(ours):
            metrics = build_metrics(
                recipe.metrics or None,
                plain=recipe.plain_metrics or None,
                model=made,
                own_step=recipe.has_own("train_step"),
            )
            step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            loss_scale = _loss_scale(recipe, made)
            ema = recipe.ema_momentum and MovingAverage(
                [native(v) for v in trainable],
                momentum=recipe.ema_momentum,
                strategy=plugin.strategy,
            )
            guard = None if recipe.guard is None else GuardState(recipe.guard)
        saved = [made, *optimizers.values()]
        known = [v for one in saved for v in one.variables] + ours.variables
        randomness = StepRandomness(made, recipe.seed)
        recompute_layers(made, recipe.recompute)
        return Parts(
            model=made,
            optimizers=optimizers,
            metrics=metrics,
            trained=list(trainable),
            step=step,
            randomness=randomness,
            loss_scale=loss_scale,
            ema=ema or None,
            guard=guard,
            untracked=Untracked(known),
            decays=noted.decays,
        )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds everything; Python's and NumPy's numbers are the program's own."""
    before = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _scope_of(
    variables: list[Any], plugin: StrategyPlugin
) -> contextlib.AbstractContextManager[Any]:
    """Where optimizers of variables are made: where these were."""
    is_theirs = plugin.strategy.extended.variable_created_in_scope
    if all(is_theirs(native(one)) for one in variables):
        return plugin.scope()
    return tf.device(plugin.devices()[0])


def _model_in_scope(
    plugin: StrategyPlugin,
    recipe: Recipe,
    call_once: Callable[[keras.Model], None],
) -> keras.Model:
    """The model with its weights; what this is about is the order."""
    given, several = recipe.given, plugin.num_replicas > 1
    made = build_model(
        (lambda: given.make(plugin)) if given else recipe.model,
        recipe.precision,
    )
    check_steps_of_model(made, recipe.overridden)
    if made.compiled:
        recipe.take_compiled(made)
    if recipe.run_eagerly:
        check_eager(plugin)
    if not made.built:
        if getattr(made.call, "__func__", None) is keras.Model.call:
            raise UserError(f"{type(made).__name__} has no method call.")
        call_once(made)
    check_added_losses(recipe.added_losses, made)
    check_dtypes(plugin, made)
    # Before optimizers and averages, which may begin with a copy.
    if given is not None:
        given.take_over(made)
    # The probe's parts are threads, too.
    if several or recipe.accumulation_steps > 1:
        separate_added_losses(made)
    # Not before: a given model's layers are not synchronized.
    if recipe.sync_batch_norm and several:
        batch_norm.synchronize(made)
    batch_norm.replace_moments_of(made)
    return made


def build_model(
    factory: Callable[[], keras.Model], precision: str | None
) -> keras.Model:
    """Calls the model's factory under a dtype policy.

    Raises:
        UserError: it does not return a model.
    """
    # The policy is global: other models of this process keep theirs.
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision or before)
    try:
        model = call_factory(factory)
    finally:
        keras.config.set_dtype_policy(before)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"The model function {getattr(factory, '__name__', factory)} "
            f"returned a {type(model).__name__}, not a keras.Model."
        )
    return model


def _loss_scale(recipe: Recipe, model: keras.Model) -> LossScale | None:
    """A loss scale, if a layer computes in float16 or the optimizer has one.

    Raises:
        UserError: a layer does, and the Trainer overrides `train_step`.
    """
    half = any(one.compute_dtype == "float16" for one in all_layers(model))
    if half and recipe.has_own("train_step"):
        raise UserError(
            "The model computes in float16, whose loss scale cannot reach an "
            "overridden train_step. Use mixed_bfloat16."
        )
    optimizer = recipe.optimizer
    # Ours in its place: it decides on reduced gradients, alike on all replicas.
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        scale = optimizer.initial_scale
        if optimizer.built:
            scale = keras.ops.convert_to_numpy(optimizer.dynamic_scale)
        return LossScale(scale, optimizer.dynamic_growth_steps)
    # `compile` has decided it, by its auto_scale_loss and the model's dtype.
    return LossScale() if half and not recipe.has_compiled_optimizer else None
