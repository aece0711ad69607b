"""Finds losses whose value for an example depends on the other examples.

Replicas and micro-batches see pieces of the global batch, so the value of such
a loss would depend on how many pieces there are.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.step.losses.keras_losses import is_by_example
from trainer.step.losses.loss_terms import checked
from trainer.step.losses.outputs import in_floatx
from trainer.step.spec import StepSpec
from trainer.step.trials.trial import TRIAL_STREAM, Trial, near

_NAME = "losses"  # In `StepSpec.tried`.


def prepare_losses(
    spec: StepSpec, batch: Callable[[], Any], *, training: bool
) -> None:
    """Tries losses that are not known to keep examples apart.

    Nothing is tried where a global batch is one piece: there such a loss gives
    what it gives in Keras.

    Args:
        spec: what the step is made of.
        batch: reads the first batch.
        training: whether to train or only to evaluate.

    Raises:
        UserError: the value for an example depends on the others.
    """
    own = spec.has_own("train_step") if training else spec.has_own("eval_step")
    if own or spec.is_whole(training=training) or not _is_open(spec):
        return
    if _NAME in spec.tried:
        return
    spec.tried.add(_NAME)
    trial = Trial(spec, batch())
    if not trial.count:
        logging.warning(
            "The loss could not be tried: the first batch has sparse parts, or "
            "fewer than two examples. It must have a value for each example "
            "that does not depend on the others."
        )
        return
    try:
        _try(trial)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - if it is wrong, the step says so
        logging.warning(
            "The loss could not be tried on %d examples (%s). It must have a "
            "value for each example that does not depend on the others.",
            trial.count,
            error,
        )


def _is_open(spec: StepSpec) -> bool:
    if spec.has_own("per_example_loss"):
        return True
    losses = keras.tree.flatten(spec.loss)
    return any(one is not None and not is_by_example(one) for one in losses)


def _try(trial: Trial) -> None:
    first, second = trial.halves
    every = first + second
    outputs = trial.call(every, training=True)
    whole = _losses(trial, every, outputs)
    if whole is None or not _alike(whole, _losses(trial, every, outputs, 1)):
        return  # It draws random numbers, so values cannot be compared.
    # Each half also fills the place of the other one: its own rows stay where
    # they were, in case a loss draws a random number for each row.
    for index, at in (first + first, first), (second + second, second):
        found = _losses(trial, index, trial.rows(outputs, index))
        _require_alike(whole, found, at=at)
    # Also with fewer rows: a sum divided by the batch is the same on both
    # halves twice, but not here.
    fewer = _losses(trial, first, trial.rows(outputs, first))
    _require_alike(whole, fewer, at=first)

    # And with other outputs in the second half: an in-batch loss may not notice
    # repeated rows.
    def other(part: tf.Tensor) -> tf.Tensor:
        if not part.dtype.is_floating or not part.shape.rank:
            return part
        return tf.concat([part[: len(first)], part[len(first) :] / 2], 0)

    changed = tf.nest.map_structure(other, outputs)
    found = _losses(trial, every, changed)
    _require_alike(whole, found, at=first)


def _losses(
    trial: Trial, index: list[int], outputs: Any, draw: int = 0
) -> dict[str, np.ndarray] | None:
    """The loss's values for some examples, by output.

    Returns:
        `None` if it has called the model in training, whose normalization
        may mix examples.
    """
    spec = trial.spec
    x, y, _ = keras.utils.unpack_x_y_sample_weight(
        trial.rows(trial.batch, index)
    )
    at = spec.parts.randomness.at(tf.constant(0), draw, TRIAL_STREAM)
    listening = spec.parts.metrics.in_layers.listening()
    with at, keras.StatelessScope() as scope, listening:
        if draw:  # Moves on Keras' own generator, within the scope.
            keras.random.normal(())
        values = spec.methods.per_example_loss(x, in_floatx(y), outputs)
    values = checked(spec, values, y_pred=outputs, rows=len(index))
    # A change of state shows that the loss has called the model itself.
    state = spec.model.non_trainable_variables
    if any(scope.get_current_value(one) is not None for one in state):
        return None
    return {name: np.asarray(value) for name, value in values.items()}


def _alike(left: dict[str, Any], right: dict[str, Any] | None) -> bool:
    return right is not None and all(near(left[k], right[k]) for k in left)


def _require_alike(
    whole: dict[str, Any],
    found: dict[str, Any] | None,
    *,
    at: list[int],
) -> None:
    for name, values in whole.items():
        if found is None or near(values[at], found[name][at]):
            continue
        raise UserError(
            f"The loss {name!r} gives an example another value when the other "
            "examples of its batch change, so it would depend on the number "
            "of replicas and micro-batches. A loss over pairs of examples or "
            "over the batch goes into Trainer.global_loss, which sees the "
            "outputs of all replicas. If it is meant as a loss per example: "
            "make sure that targets and outputs do not broadcast ([batch] "
            "with [batch, 1]), and do not divide by the batch."
        )
