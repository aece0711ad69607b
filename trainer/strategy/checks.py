"""Checks a Trainer's arguments, by themselves and against its strategy."""

from collections.abc import Collection
from typing import Any

import keras

from trainer.errors import UserError, nearest
from trainer.step.forms import Form
from trainer.step.keras.private import all_layers, function_loss, is_of_keras
from trainer.step.losses.keras_losses import loss_by_name
from trainer.step.spec import AddedLosses
from trainer.strategy.plugin import StrategyPlugin


def check_against_strategy(
    plugin: StrategyPlugin,
    *,
    batch_size: int,
    accumulation_steps: int,
    form: Form,
) -> None:
    """Checks that a strategy can do what the arguments require.

    Raises:
        UserError: it cannot.
    """
    if keras.distribution.distribution() is not None:
        raise UserError(
            "keras.distribution.set_distribution does nothing with TensorFlow. "
            "Name a strategy, such as Trainer(strategy='mirrored'), and call "
            "keras.distribution.set_distribution(None)."
        )
    parts = plugin.num_replicas * accumulation_steps
    if plugin.options.static_shapes and batch_size % parts:
        below = batch_size // parts * parts
        near = f"{below} or {below + parts}" if below else f"{parts}"
        raise UserError(
            f"batch_size = {batch_size} must be a multiple of {parts} "
            f"({plugin.num_replicas} replicas times {accumulation_steps} "
            f"micro-batches) under the strategy {plugin.name!r}. Nearest: "
            f"{near}."
        )
    reason = why_not_in_form(plugin, form, accumulation_steps)
    if reason:
        raise UserError(f"jit_compile: {reason}. Leave it off.")


def why_not_in_form(
    plugin: StrategyPlugin, form: Form, accumulation_steps: int
) -> str | None:
    """Why a strategy cannot run a step in a form; `None` if it can."""
    if form is Form.GRAPH:
        return None
    reason = plugin.why_not_compiled()
    if reason is None and form is Form.XLA_STACK:
        if not plugin.options.takes_stacks:
            return f"the strategy {plugin.name!r} takes no stacks of batches"
        if accumulation_steps > 1:
            return f"{form} cannot be combined with accumulation_steps"
    return reason


def check_eager(plugin: StrategyPlugin) -> None:
    """Checks that steps can be run eagerly under a strategy.

    Raises:
        UserError: its replicas are threads or processes of their own.
    """
    # What this option says is what is needed: a single replica, in this
    # process.
    if not plugin.options.takes_stacks:
        raise UserError(
            f"run_eagerly: the replicas of the strategy {plugin.name!r} are "
            "threads, processes or programs of their own, which a debugger "
            "cannot step through. Set strategy to 'default' or 'one_device'; "
            "the mathematics is the same."
        )


def check_dtypes(plugin: StrategyPlugin, model: keras.Model) -> None:
    """Checks that a strategy's devices support the dtypes of layers.

    Raises:
        UserError: they do not; the first such layer is named.
    """
    for layer in all_layers(model):
        reason = plugin.why_not_computed_in(layer.compute_dtype)
        if reason:
            raise UserError(
                f"The layer {layer.name!r} computes in {layer.compute_dtype}: "
                f"{reason}"
            )


def check_added_losses(kinds: AddedLosses, model: keras.Model) -> None:
    """Checks what is declared about the losses that layers add.

    Raises:
        UserError: a layer is unknown.
    """
    names = {layer.name for layer in all_layers(model)}
    for name in kinds if isinstance(kinds, dict) else ():
        if name not in names:
            raise UserError(
                f"added_losses names {name!r}, which is not a layer of the "
                f"model. {nearest(name, names)}"
            )


# Methods that `fit` would call, or is, and what replaces them here. Others of
# Keras' are called, or nothing depends on them.
_NOT_CALLED: dict[type, dict[str, str]] = {
    keras.Model: {
        "train_step": "Trainer.train_step",
        "test_step": "Trainer.eval_step",
        "compute_metrics": "Trainer.metrics",
        "get_metrics_result": "Trainer.metrics",
        "reset_metrics": "Trainer.metrics",
        "losses": "add_loss in the layer's call",
        "make_train_function": "Trainer.train_step",
        "make_test_function": "Trainer.eval_step",
        "make_predict_function": "its predict_step or Trainer.forward",
        "fit": "a subclass of Trainer",
        "evaluate": "a subclass of Trainer",
        "predict": "a subclass of Trainer",
    },
    keras.optimizers.Optimizer: {
        "scale_loss": "the loss, or its apply_gradients",
        "stateless_apply": "its apply_gradients",
    },
}


def check_methods(owner: Any, ignored: Collection[str] = ()) -> None:
    """Checks that a model or an optimizer overrides nothing of `fit`'s.

    Args:
        owner: built or not.
        ignored: methods that are called, or need not be.

    Raises:
        UserError: a method is its own, and would not be called.
    """
    for kind, methods in _NOT_CALLED.items():
        for name, instead in methods.items() if isinstance(owner, kind) else ():
            if name not in ignored and not is_of_keras(owner, name):
                raise UserError(
                    f"{type(owner).__name__}.{name} is overridden, but only "
                    f"keras.Model.fit calls it. Move it to {instead}."
                )


def check_steps_of_model(
    model: keras.Model, overridden: Collection[str]
) -> None:
    """Checks that a model has no step of its own, as it would not be called.

    Args:
        model: what the model function returned.
        overridden: the methods of a step that the Trainer's class overrides.
            An overridden step may call the methods of the model.

    Raises:
        UserError: it has one.
    """
    replaced = {"train_step": "train_step", "eval_step": "test_step"}
    ignored = {its for own, its in replaced.items() if own in overridden}
    if len(ignored) == len(replaced):
        ignored |= {*_NOT_CALLED[keras.Model]} - {"fit", "evaluate", "predict"}
    # A task of KerasHub: its `fit` puts data through this first.
    if hasattr(model, "preprocessor"):
        if model.preprocessor is not None:
            raise UserError(
                f"{type(model).__name__}.preprocessor is applied by its own "
                "fit, but not here. Apply it to the data, as in "
                "dataset.map(model.preprocessor), and set model.preprocessor = "
                "None."
            )
        ignored |= {"fit", "evaluate", "predict"}
    check_methods(model, ignored)


def own_predict_step(model: keras.Model) -> Any:
    """A model's `predict_step` if it is not Keras'; otherwise `None`."""
    is_own = not is_of_keras(model, "predict_step")
    return model.predict_step if is_own else None


def check_trainable(
    model: keras.Model, known: Collection[Any], *, own_step: bool
) -> None:
    """Checks that the optimizer knows what is to be trained.

    Args:
        model: the built model.
        known: the variables that were trainable when it was built.
        own_step: whether an overridden `train_step` chooses variables.

    Raises:
        UserError: a layer has become trainable since.
    """
    # By identity, because `==` of variables compares their elements.
    ids = {id(variable) for variable in known}
    for variable in model.trainable_variables:
        if id(variable) not in ids and not own_step:
            raise UserError(
                f"{variable.path} was not trainable when the model was built, "
                "so the optimizer has no state for it. Set trainable in the "
                "model function; freezing later is possible, thawing is not."
            )


def as_loss(loss: Any) -> keras.losses.Loss | None:
    """A Keras loss from a name, a class, a function or a loss.

    Raises:
        UserError: the loss reduces by itself.
    """
    name = None
    if isinstance(loss, str):
        name, loss = loss, loss_by_name(loss)
    # In gin, a loss is often named as a class, without arguments.
    if isinstance(loss, type):
        loss = loss()
    if loss is None:
        return None
    if isinstance(loss, keras.losses.Loss):
        _check_call(loss)
        return loss
    # As `compile` does, so that shapes are aligned in the same way.
    return function_loss(loss, name)


def _check_call(loss: keras.losses.Loss) -> None:
    """Refuses a loss that overrides `__call__`, as it is not called here."""
    kind = type(loss)
    if kind.__call__ is not keras.losses.Loss.__call__:
        raise UserError(
            f"The loss {kind.__name__} overrides __call__, where Keras weighs "
            "and divides; here the Trainer does, over all replicas. Override "
            "call(y_true, y_pred), and return one value for each example."
        )
