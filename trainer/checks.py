"""Checks of a Trainer's arguments, alone and against its strategy."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from trainer.errors import UserError
from trainer.step.keras_hooks import all_layers
from trainer.strategy import StrategyPlugin


def require_positive(**numbers: int) -> None:
    """Checks that each number is an integer of at least 1.

    Raises:
        UserError: one is not; it is named.
    """
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise UserError(
                f"{name} = {value!r} must be a whole number, at least 1."
            )


def check_against_strategy(
    plugin: StrategyPlugin,
    *,
    batch_size: int,
    accumulation_steps: int,
    jit_compile: bool,
) -> None:
    """Checks what a strategy must be able to do.

    Raises:
        UserError: it cannot.
    """
    pieces = plugin.num_replicas * accumulation_steps
    if plugin.static_shapes and batch_size % pieces:
        below = batch_size // pieces * pieces
        nearest = f"{below} or {below + pieces}" if below else f"{pieces}"
        raise UserError(
            f"batch_size = {batch_size} must be a multiple of {pieces} "
            f"({plugin.num_replicas} replicas times {accumulation_steps} "
            f"micro-batches) under the strategy {plugin.name!r}. Nearest: "
            f"{nearest}."
        )
    reason = plugin.why_not_compiled()
    if jit_compile and reason:
        raise UserError(f"jit_compile: {reason}. Leave it off.")


def check_dtypes(plugin: StrategyPlugin, model: keras.Model) -> None:
    """Checks that a strategy's devices can compute what layers compute in.

    Raises:
        UserError: they cannot; the first such layer is named.
    """
    for layer in all_layers(model):
        reason = plugin.why_not_computed_in(layer.compute_dtype)
        if reason:
            raise UserError(
                f"The layer {layer.name!r} computes in {layer.compute_dtype}: "
                f"{reason}"
            )


def check_micro_batches(
    model: keras.Model, last_size: int | None, *, accumulation_steps: int
) -> None:
    """Checks that no micro-batch is empty where that would change a result.

    Args:
        model: the built model.
        last_size: examples in an epoch's last batch; `None` if unknown.
        accumulation_steps: micro-batches in a batch.

    Raises:
        UserError: BatchNormalization would take the statistics of nothing.
    """
    if last_size is None or last_size >= accumulation_steps:
        return
    norm = keras.layers.BatchNormalization
    if any(isinstance(layer, norm) for layer in all_layers(model)):
        raise UserError(
            f"An epoch's last batch has {last_size} examples for "
            f"{accumulation_steps} micro-batches, and BatchNormalization "
            "would see an empty one. Choose another batch_size or a smaller "
            "accumulation_steps."
        )


def check_own_train_step(
    name: str, *, accumulation_steps: int, precision: str | None
) -> None:
    """Checks what a `train_step` of one's own must do without.

    Raises:
        UserError: an option needs the Trainer's own step.
    """
    if accumulation_steps > 1:
        raise UserError(
            f"{name} has a train_step of its own, so it must accumulate by "
            "itself. Leave accumulation_steps at 1."
        )
    if precision == "mixed_float16":
        raise UserError(
            f"{name} has a train_step of its own, which the loss scale of "
            "mixed_float16 cannot reach. Use mixed_bfloat16."
        )


def check_class_weight(
    weights: Mapping[int, float] | None,
) -> dict[int, float] | None:
    """Checks weights by class.

    Raises:
        UserError: a class is no whole number, or a weight no number.
    """
    if weights is None:
        return None
    for label, weight in weights.items():
        if (
            not isinstance(label, int)
            or label < 0
            or not isinstance(weight, int | float)
        ):
            raise UserError(
                f"class_weight has {label!r}: {weight!r}. Valid: the number of "
                "a class, from 0, to a number, such as {0: 1.0, 1: 2.5}."
            )
    return dict(weights)


def as_loss(loss: Any) -> keras.losses.Loss | None:
    """A Keras loss from a name, a class, a function or a loss.

    Raises:
        UserError: the name is unknown.
    """
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            raise UserError(
                f"Unknown loss {loss!r}. Name one of keras.losses, such as "
                "'SparseCategoricalCrossentropy'."
            ) from None
    if isinstance(loss, type):
        loss = loss()
    if loss is None or isinstance(loss, keras.losses.Loss):
        return loss
    if not callable(loss):
        raise UserError(
            f"loss is a {type(loss).__name__}. Valid: a Keras loss, its name, "
            "or a function of (y_true, y_pred)."
        )
    return _FunctionLoss(loss)


class _FunctionLoss(keras.losses.Loss):
    """A plain function of (y_true, y_pred) as a Keras loss."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """See `keras.losses.Loss.call`."""
        return self._function(y_true, y_pred)
