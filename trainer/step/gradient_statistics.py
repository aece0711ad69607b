"""`GradientStatistics`: norms and histograms of gradients, every few steps."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.runtime.graph import only_if
from trainer.step.gradients import Gradient, global_norm

BUCKETS = 30  # As in TensorBoard.


class GradientStatistics:
    """Measures the gradients that are applied, before they are clipped.

    Make it in the strategy's scope. Its variables belong to no checkpoint: they
    are read in the event that follows the step.

    Args:
        trained: the trainable variables.
        every: measures each step whose number is a multiple of it.
    """

    def __init__(self, trained: Sequence[Any], every: int) -> None:
        self._every = every
        # [norm, least, greatest, counts of 30 buckets], for each variable.
        self._found = {id(one): _variable() for one in trained}

    @property
    def variables(self) -> list[tf.Variable]:
        """What a step writes."""
        return list(self._found.values())

    def note(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        step: tf.Tensor,
    ) -> None:
        """Measures the gradients of a step, if it is one of those.

        Args:
            gradients: reduced ones, equal on every replica; sparse ones with
                each row once, of which only these rows are measured.
            variables: whose gradients they are.
            step: the optimizer steps that were done before.
        """

        def measure() -> None:
            for gradient, variable in zip(gradients, variables, strict=True):
                found = self._found.get(id(variable))
                if gradient is not None and found is not None:
                    found.assign(_measured(gradient))

        only_if(tf.equal((step + 1) % self._every, 0), measure)

    def read(self, variable: Any) -> tuple[float, np.ndarray]:
        """What the last such step has left of a variable, and forgets it.

        Returns:
            The norm, and a histogram as in `Media.data`. A step that was left
            out, as where a float16 gradient overflows, has a norm of NaN.
        """
        found = self._found[id(variable)]
        norm, least, greatest, *counts = (
            np.asarray(found.read_value()).astype(np.float64).tolist()
        )
        found.assign(_nothing())
        if not np.isfinite([norm, least, greatest]).all():
            return norm, np.zeros((0, 3))
        edges = np.linspace(least, greatest, BUCKETS + 1)
        return norm, np.stack([edges[:-1], edges[1:], counts], axis=1)


def _measured(gradient: Any) -> tf.Tensor:
    sparse = isinstance(gradient, tf.IndexedSlices)
    values = gradient.values if sparse else gradient
    values = tf.reshape(tf.cast(values, tf.float32), [-1])
    least, greatest = tf.reduce_min(values), tf.reduce_max(values)
    width = (greatest - least) / BUCKETS
    bucket = tf.cast(tf.math.divide_no_nan(values - least, width), tf.int32)
    # Not tf.histogram_fixed_width, which XLA does not have.
    counts = tf.math.unsorted_segment_sum(
        tf.ones_like(values),
        tf.clip_by_value(bucket, 0, BUCKETS - 1),
        BUCKETS,
    )
    head = tf.stack([global_norm([gradient]), least, greatest])
    return tf.concat([head, counts], 0)


@functools.cache
def _nothing() -> np.ndarray:
    return np.full(3 + BUCKETS, np.nan, np.float32)


def _variable() -> tf.Variable:
    # Each replica writes its own copy, without an exchange, as the write is in
    # a condition; they are equal, so that the first one's will do.
    return tf.Variable(
        _nothing(),
        trainable=False,
        name="gradient_statistics",
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
