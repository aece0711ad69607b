"""Checks that a loss has one value, or one row of values, per example.

Only then can the Trainer weigh examples, leave out padding and divide by the
global batch, and only then is the result the same on any number of replicas.
"""

from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError, at_run_time
from trainer.step.keras.private import (
    function_of_loss,
    keras_mask,
    set_keras_mask,
)

# Functions of keras.losses that pair targets and outputs value by value.
_BY_VALUE = frozenset(
    {
        "binary_crossentropy",
        "binary_focal_crossentropy",
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_hinge",
        "cosine_similarity",
        "dice",
        "hinge",
        "huber",
        "kl_divergence",
        "log_cosh",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "poisson",
        "squared_hinge",
        "tversky",
    }
)
# Those that take class numbers. All but the first check shapes themselves.
_ONE_HOT = "categorical_generalized_cross_entropy"
_BY_CLASS = frozenset({_ONE_HOT, "ctc", "sparse_categorical_crossentropy"})
# By default these return one value for all examples: they need an axis.
_OVER_ALL = frozenset({"dice", "tversky"})


def is_by_example(loss: keras.losses.Loss) -> bool:
    """Whether a loss is Keras' own and known to keep examples apart.

    No trial is needed for such a loss.
    """
    name, options = function_of_keras(loss)
    if name not in _BY_VALUE | _BY_CLASS:
        return False
    axis = options.get("axis", None if name in _OVER_ALL else -1)
    axes = axis if isinstance(axis, list | tuple) else [axis]
    # Another axis may be that of the batch, as -2 is for outputs of rank 2.
    return all(one is not None and (one == -1 or one > 0) for one in axes)


def check_alike(loss: keras.losses.Loss, y: Any, y_pred: Any) -> None:
    """Refuses targets that would be paired with other examples' outputs.

    Keras aligns ranks that differ by a last axis of one. Any others
    broadcast, from the last axis on, so that the axis of examples meets
    another one.

    Args:
        loss: only Keras' own losses are checked; others may take any shapes.
        y: its targets.
        y_pred: the output.

    Raises:
        UserError: the ranks differ otherwise.
    """
    name, _ = function_of_keras(loss)
    if not (tf.is_tensor(y) and tf.is_tensor(y_pred)):
        return
    ranks = y.shape.rank, y_pred.shape.rank
    if None in ranks or name not in (*_BY_VALUE, _ONE_HOT):
        return
    # The last axis of the tensor that has more of them.
    last = (y if ranks[0] > ranks[1] else y_pred).shape[-1]
    more = ranks[1] - ranks[0]
    if name == _ONE_HOT:
        # Class numbers get one more axis here, unless Keras has added it.
        fits = more == 1 and last != 1
    else:
        fits = more == 0 or (abs(more) == 1 and last in (1, None))
    if fits:
        return
    raise UserError(
        f"The loss {loss.name!r} got targets of the shape {y.shape} for "
        f"outputs of the shape {y_pred.shape}: by broadcasting, targets of "
        "one example would meet outputs of another. Give both one shape, or "
        "class numbers one axis less: [batch] for [batch, classes], in a loss "
        "such as SparseCategoricalCrossentropy."
    )


def needs_an_example(loss: keras.losses.Loss) -> bool:
    """Whether TensorFlow cannot compute a loss of no example."""
    return function_of_keras(loss)[0] == "ctc"


def check_rows(
    values: Any,
    *,
    name: str,
    rows: int | tf.Tensor,
    loss: keras.losses.Loss | None,
    y_pred: Any,
) -> tf.Tensor:
    """Checks that a loss has a row for each example.

    Args:
        values: what the loss returned.
        name: the output's name.
        rows: of the batch; a number where it is known while tracing.
        loss: the Keras loss; `None` where it was computed otherwise.
        y_pred: the output.

    Returns:
        The same values. Where their shape is not known while tracing, it is
        checked as they are computed.

    Raises:
        UserError: it is known that they have another number of rows.
    """
    mask = keras_mask(values)
    values = tf.convert_to_tensor(values)
    if values.shape.rank is None:
        raise UserError(
            f"The number of axes of the loss {name!r} is not known while "
            "tracing. Return the shape [batch] or [batch, ...]: tf.squeeze "
            "needs its axis, such as tf.squeeze(values, -1)."
        )
    if values.shape.rank == 0:
        raise UserError(_scalar_sentence(name, loss, y_pred))
    known = values.shape[0]
    if isinstance(rows, int) and known is not None:
        if known != rows:
            raise UserError(
                f"{_rows_sentence(name)} Here it has {known} for {rows}."
            )
    # A loss that is known to keep examples apart needs no check in every step.
    elif loss is None or not is_by_example(loss):
        values = _checked_as_computed(values, name=name, rows=rows)
    if mask is not None:
        # tf.identity above made a new tensor, without the mask.
        set_keras_mask(values, mask)
    return values


def _checked_as_computed(
    values: tf.Tensor, *, name: str, rows: int | tf.Tensor
) -> tf.Tensor:
    check = tf.debugging.assert_equal(
        tf.shape(values, tf.int64)[0],
        tf.cast(rows, tf.int64),
        message=at_run_time(_rows_sentence(name)),
    )
    if check is None:  # Called eagerly, where it has been raised.
        return values
    with tf.control_dependencies([check]):
        return tf.identity(values)


def _rows_sentence(name: str) -> str:
    return (
        f"The loss {name!r} must have one row for each example of the batch. "
        "Return the shape [batch] or [batch, ...]: where a model or a loss "
        "merges axes, as in [batch * tokens], give them back by "
        "tf.reshape(values, [batch, tokens]); where it reduces axis 0, which "
        "is the batch, let it reduce the others."
    )


def _scalar_sentence(
    name: str, loss: keras.losses.Loss | None, y_pred: Any
) -> str:
    """What to do about a loss that is one number for the whole batch."""
    found = (
        f"The loss {name!r} returned a scalar, but the Trainer needs one value "
        "for each example, to divide by the global batch."
    )
    instead = (
        "For one value over the whole global batch override "
        "Trainer.global_loss."
    )
    if loss is None:
        return (
            f"{found} Let per_example_loss return the shape [batch] or "
            f"[batch, ...], such as tf.reduce_mean(..., axis=-1). {instead}"
        )
    function, _ = function_of_keras(loss)
    rank = getattr(getattr(y_pred, "shape", None), "rank", None)
    if function in _OVER_ALL:
        kind = function.capitalize()
        axes = tuple(range(1, rank or 0)) or (1,)
        return (
            f"{found} Say which axes an example has: keras.losses.{kind}"
            f"(axis={axes}). {instead}"
        )
    if function is not None and rank == 1:
        return (
            f"{found} {function} takes the mean over the last axis of the "
            "output, which only has the batch's. Give the output and its "
            "targets the shape [batch, 1]."
        )
    own = function_of_loss(loss)[0]
    kind = type(loss).__name__
    place = f"{kind}.call" if own is None else f"the function {loss.name!r}"
    if function is not None:
        return f"{found} Give {kind} an axis other than the batch's. {instead}"
    return (
        f"{found} Let {place} return the shape [batch] or [batch, ...], such "
        f"as tf.reduce_mean(..., axis=-1). {instead}"
    )


def function_of_keras(
    loss: keras.losses.Loss,
) -> tuple[str | None, dict[str, Any]]:
    """The name of the function of keras.losses that a loss calls, if any."""
    function, options = function_of_loss(loss)
    name = getattr(function, "__name__", None)
    # By identity: a function of a user's may have the same name.
    if name is None or getattr(keras.losses, name, None) is not function:
        return None, {}
    return name, options
