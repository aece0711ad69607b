"""Finds layers that keep or add something that is not a mean over the batch.

Each replica or micro-batch sees a piece of the global batch. What layers pass
to `add_loss`, and what they assign to floating-point variables, is averaged
over pieces, weighed by examples. That is right for a mean over the batch, but
not for a sum. The code of a layer does not say which of the two is meant, so
the layers are tried.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.step.context import step_context
from trainer.step.keras.private import (
    all_layers,
    native,
    noting_added_losses,
    without_batch_statistics,
)
from trainer.step.losses.loss_terms import kind_of_added
from trainer.step.spec import StepSpec
from trainer.step.trials.trial import TRIAL_STREAM, Trial, near

# The kind of a change, its layer or variable, and its number or dtype.
_Name = tuple[str, str, str]
_ADDED, _KEPT = "added", "kept"
_NAME = "layers"  # In `StepSpec.tried`.
# Sums over an output, which Keras divides by the batch: means.
_NORMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


def prepare_layers(
    spec: StepSpec, batch: Callable[[], Any], *, training: bool
) -> None:
    """Tries the layers that are not Keras' own, on a few examples.

    Nothing is tried where a global batch is one piece.

    Args:
        spec: what the step is made of.
        batch: reads the first batch.
        training: whether to train or only to evaluate.

    Raises:
        UserError: a layer keeps or adds something that is not a mean over the
            batch, and it is not said what it is.
    """
    if _NAME in spec.tried or spec.is_whole(training=training):
        return
    if not any(_is_open(layer) for layer in all_layers(spec.model)):
        return
    spec.tried.add(_NAME)
    trial = Trial(spec, batch())
    try:
        if trial.count and not _try(trial, training=True):
            _try(trial, training=False)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - if it is wrong, the step says so
        logging.warning(
            "The model's layers could not be tried on %d examples (%s). What "
            "they keep or add must be means over the batch.",
            trial.count,
            error,
        )


def _is_open(layer: keras.Layer) -> bool:
    """Whether it is unknown what a layer may keep or add."""
    if type(layer).__module__.partition(".")[0] != "keras":
        return True
    return type(layer.activity_regularizer) not in (*_NORMS, type(None))


def _try(trial: Trial, *, training: bool) -> bool:
    """Compares the whole with its halves.

    Returns:
        Whether everything could be compared; random numbers cannot.
    """
    first, second = trial.halves
    whole = _changes(trial, first + second, training=training)
    if not whole:
        return True
    # With other random numbers: a change that differs here cannot be compared.
    again = _changes(trial, first + second, training=training, draw=1)
    # Each half twice has as many rows as the whole; a half once has fewer. A
    # mean does not see a difference between the two, a sum does.
    others = [
        _changes(trial, index, training=training)
        for index in (first + first, second + second, first)
    ]
    fixed = [
        name
        for name in whole
        if all(name in one for one in (again, *others))
        and near(whole[name], again[name])
    ]
    for name in fixed:
        _require_mean(trial.spec, name, whole[name], *(o[name] for o in others))
    return len(fixed) == len(whole)


def _changes(
    trial: Trial, index: list[int], *, training: bool, draw: int = 0
) -> dict[_Name, np.ndarray]:
    """What layers add, and how far they move variables, for some examples."""
    spec = trial.spec
    assigned: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
    model = spec.model
    x, _, _ = keras.utils.unpack_x_y_sample_weight(
        trial.rows(trial.batch, index)
    )
    with (
        spec.parts.randomness.at(tf.constant(0), draw, TRIAL_STREAM),
        spec.parts.metrics.in_layers.listening(),
        # Batch statistics would make all examples depend on each other.
        without_batch_statistics(model),
        noting_added_losses(model) as added,
        step_context.within(assigned=assigned),
        keras.StatelessScope() as scope,
    ):
        spec.methods.forward(x, training=training)
    found = {
        (_ADDED, layer, str(i)): np.asarray(value)
        for i, (layer, value) in enumerate(added)
        if kind_of_added(spec.added_losses, layer) is None
    }
    # Nothing is reduced then, so nothing is averaged that should not be.
    if spec.plugin.num_replicas == 1:
        return found  # Micro-batches just assign one after the other.
    moved = dict(assigned)
    # Assignments by Keras go through the StatelessScope, those to plain
    # tf.Variables through the notes.
    for variable in model.non_trainable_weights:
        value = scope.get_current_value(variable)
        if value is not None and variable.aggregation == "none":
            moved[variable.path] = value, native(variable).read_value()
    for path, (value, old) in moved.items():
        change = np.asarray(value) - np.asarray(old)
        found[_KEPT, path, old.dtype.name] = change
    return found


def _require_mean(
    spec: StepSpec,
    name: _Name,
    whole: np.ndarray,
    twice: np.ndarray,
    other: np.ndarray,
    once: np.ndarray,
) -> None:
    """Checks that a mean over pieces equals that of the whole.

    Args:
        spec: whose layers they are.
        name: of the change.
        whole: the change by all examples.
        twice: the change by the first half, twice over.
        other: the change by the second half, twice over.
        once: the change by the first half.

    Raises:
        UserError: it does not.
    """
    kind, owner, detail = name
    # Integers are not averaged: the first replica's value is taken.
    averaged = kind == _ADDED or tf.as_dtype(detail).is_floating
    # A constant, which is the same on any piece.
    same = near(whole, twice) and near(whole, other) and near(whole, once)
    additive = near(whole, (twice + other) / 2)
    if same or (averaged and additive and near(twice, once)):
        return
    is_sum = additive and near(twice, 2 * once)
    what = (
        "a sum over the batch"
        if is_sum
        else "something that is not a mean over the batch"
    )
    depends = "so it would depend on the number of replicas and micro-batches"
    if kind == _ADDED:
        raise UserError(
            f"The layer {owner!r} passes {what} to add_loss, {depends}. "
            "Divide it by the batch, or say what it is: Trainer.added_losses "
            f"= {{{owner!r}: 'sum'}} adds up what replicas add, 'mean' takes "
            "their mean, by examples."
        )
    raise UserError(
        f"The variable {owner!r} keeps {what}, {depends}. Say what it is "
        "where it is made, as in add_weight(..., aggregation='sum'): 'sum' "
        "adds up what replicas add to it, 'mean' takes the mean of their "
        "values, by examples, 'only_first_replica' the first one's."
    )
