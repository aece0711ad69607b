"""Exact metrics under every strategy.

A Keras metric updates its variables by reading and writing them, which
replicas would do in each other's way. Here a step returns the metric's
increments from its initial state (`stateless_update_state`); they are summed
over replicas and steps, and the result is computed from the sum. That is
exact for every metric whose state adds up, as those of Keras do.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras_hooks import keras_mask

Increments = dict[str, list[tf.Tensor]]


class MetricSet:
    """The metrics of a run, by name.

    Args:
        metrics: metrics of a single output, or output name to metrics.

    Raises:
        UserError: two metrics of an output have one name, or an entry is no
            metric.
    """

    def __init__(self, metrics: Any) -> None:
        by_output = metrics if isinstance(metrics, dict) else {"": metrics}
        self._metrics: dict[str, tuple[str, keras.Metric]] = {}
        for output, group in by_output.items():
            for metric in tf.nest.flatten(group):
                self._add(output, metric)
        self._initial = {
            name: [keras.ops.convert_to_numpy(v) for v in metric.variables]
            for name, (_, metric) in self._metrics.items()
        }

    def __len__(self) -> int:
        return len(self._metrics)

    @property
    def names(self) -> list[str]:
        """The names under which values are logged."""
        return list(self._metrics)

    def increments(
        self, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> Increments:
        """What one replica's batch adds to each metric's state.

        Args:
            y: targets.
            y_pred: the model's outputs.
            sample_weight: one weight per example; padding has zero.
        """
        found = {}
        for name, (output, metric) in self._metrics.items():
            target, predicted, weight = (
                value[output] if output and isinstance(value, dict) else value
                for value in (y, y_pred, sample_weight)
            )
            weight = _mask_weight(weight, keras_mask(predicted))
            start = [tf.constant(v) for v in self._initial[name]]
            after = metric.stateless_update_state(
                start, target, predicted, sample_weight=weight
            )
            found[name] = [b - a for a, b in zip(start, after, strict=True)]
        return found

    def results(self, sums: dict[str, list[np.ndarray]]) -> dict[str, float]:
        """Computes each metric from its summed increments.

        Args:
            sums: metric name to the increments summed over a whole interval.
        """
        values: dict[str, float] = {}
        for name, (_, metric) in self._metrics.items():
            state = [
                tf.cast(initial + total, initial.dtype)
                for initial, total in zip(
                    self._initial[name], sums[name], strict=True
                )
            ]
            result = metric.stateless_result(state)
            if isinstance(result, dict):
                for key, value in result.items():
                    values[key] = float(value)
            elif np.ndim(result):
                # One value per class, such as F1Score(average=None).
                for i, value in enumerate(np.ravel(result)):
                    values[f"{name}_{i}"] = float(value)
            else:
                values[name] = float(result)
        return values

    def _add(self, output: str, metric: Any) -> None:
        if not isinstance(metric, keras.Metric):
            raise UserError(
                f"Metric {metric!r} is no keras.Metric. Name the class "
                "exactly, such as SparseCategoricalAccuracy."
            )
        name = f"{output}_{metric.name}" if output else metric.name
        if name in self._metrics:
            raise UserError(
                f"Two metrics are named {name!r}: give one another name."
            )
        self._metrics[name] = (output, metric)


def build_metrics(factories: Any) -> MetricSet:
    """Makes the metrics of a run.

    Args:
        factories: a metric, a function that returns one, or a list or dict
            of these.
    """

    def make(factory: Any) -> Any:
        if isinstance(factory, str):
            factory = getattr(keras.metrics, factory, factory)
        if callable(factory) and not isinstance(factory, keras.Metric):
            return factory()
        return factory

    return MetricSet(tf.nest.map_structure(make, factories))


def _mask_weight(weight: Any, mask: tf.Tensor | None) -> Any:
    if mask is None:
        return weight
    mask = tf.cast(mask, tf.float32)
    if weight is None:
        return mask
    weight = tf.cast(weight, tf.float32)
    if weight.shape.rank == mask.shape.rank - 1:
        weight = weight[..., tf.newaxis]
    return weight * mask
