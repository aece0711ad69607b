"""A Keras metric as pure functions of its state.

Replicas that update a metric's variables at once lose updates. Here the
variables only define the shape of a state; its values travel as tensors.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.step.keras.private import native


class Call(NamedTuple):
    """One call of a metric's `update_state`.

    Attributes:
        arguments: its positional arguments.
        options: its keyword arguments.
    """

    arguments: tuple[Any, ...]
    options: dict[str, Any]


def initial_state(metric: keras.Metric) -> list[np.ndarray]:
    """What a metric's variables hold before its first update.

    An overridden `reset_state` defines it. Keras' default sets everything to
    zero, even a variable with another initializer.
    """
    if type(metric).reset_state is keras.Metric.reset_state:
        return [native(v).numpy() for v in metric.variables]
    state = metric.stateless_reset_state()
    return [native(v).numpy() for v in state]


def updated(
    metric: keras.Metric, state: Sequence[Any], calls: Sequence[Call]
) -> list[tf.Tensor]:
    """The state after some updates."""
    values = [tf.convert_to_tensor(v) for v in state]
    for call in calls:
        values = metric.stateless_update_state(
            values, *call.arguments, **call.options
        )
    return [tf.convert_to_tensor(v) for v in values]


def result(metric: keras.Metric, state: Sequence[Any]) -> Any:
    """What a metric makes of a state: a number, an array or a dict of these."""

    def read(value: Any) -> Any:
        # Read it within the scope: outside of it a variable has the value of
        # its initializer.
        if isinstance(value, keras.Variable):
            return tf.convert_to_tensor(value.value)
        return value

    mapping = list(zip(metric.variables, state, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        return keras.tree.map_structure(read, metric.result())


def build(metric: keras.Metric, calls: Sequence[Call]) -> None:
    """Lets a metric make the variables that it makes on its first update.

    Their values stay those of their initializers. Call it in the strategy's
    scope, outside of any step.
    """
    with keras.StatelessScope():
        for call in calls:
            metric.update_state(*call.arguments, **call.options)


def is_known(metric: keras.Metric) -> bool:
    """Whether a Keras metric is known to add up, for outputs of rank 2 or more.

    One that wraps a function, or reduces an axis that may be the batch's, is
    not.
    """
    kind = type(metric)
    # Exactly Keras' class: a subclass may override its update.
    if vars(keras.metrics).get(kind.__name__) is not kind or kind in (
        keras.metrics.MeanMetricWrapper,
        keras.metrics.Mean,
        keras.metrics.Sum,
    ):
        return False
    if "axis" in inspect.signature(kind.__init__).parameters:
        return getattr(metric, "axis", None) == -1
    return kind is not keras.metrics.CosineSimilarity
