"""`Average`: a total and a count, which add up over replicas and steps."""

from typing import NamedTuple

import tensorflow as tf


class Average(NamedTuple):
    """A mean before its division.

    Attributes:
        total: float32 scalar, the weighted sum of the values.
        count: float32 scalar, the sum of the weights.
    """

    total: tf.Tensor
    count: tf.Tensor

    @property
    def value(self) -> tf.Tensor:
        """The mean; zero where nothing was counted."""
        return tf.math.divide_no_nan(self.total, self.count)


def average(total: tf.Tensor, count: tf.Tensor | float = 1.0) -> Average:
    """Makes an `Average` of float32 scalars.

    Args:
        total: scalar, the weighted sum of some values.
        count: scalar, the sum of their weights.
    """
    return Average(tf.cast(total, tf.float32), tf.cast(count, tf.float32))
