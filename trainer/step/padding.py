"""Padding: the form in which a step gets a filled-up evaluation piece."""

from typing import Any

import keras
import tensorflow as tf

from trainer.data.rows import count_rows
from trainer.data.static_shapes import Padded


class WeightedBatch(tuple):
    """A batch `(x, y, sample_weight)` whose padding weighs nothing.

    Attributes:
        real: float32 of shape `[batch]`, 1 for an example, 0 for padding.
        has_weights: whether the data has sample weights of its own.
    """

    real: tf.Tensor
    has_weights: bool


def weighted(padded: Padded) -> WeightedBatch:
    """Gives a filled-up piece the form that `Trainer.eval_step` takes.

    Sample weights are multiplied by the mark of what is real; where there
    are none, the mark becomes the sample weight. A batch that is not `x`,
    `(x, y)` or `(x, y, sample_weight)` becomes `x` whole.
    """
    batch, real = padded
    if isinstance(batch, list | tuple) and len(batch) > 3:
        # keras.utils.unpack_x_y_sample_weight would refuse it.
        batch = (batch,)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    has_weights = weight is not None
    if weight is None:
        weight = real
    else:
        weight = tf.nest.map_structure(
            lambda part: tf.cast(part, tf.float32) * align(real, part), weight
        )
    # A tuple with attributes: research code unpacks it as usual, and the step
    # still knows which rows are padding.
    made = WeightedBatch((x, y, weight))
    made.real, made.has_weights = real, has_weights
    return made


def real_rows(batch: Any) -> tf.Tensor | None:
    """Which rows of a batch are examples; `None` where all of them are."""
    return getattr(batch, "real", None)


def is_weighted(batch: Any) -> bool:
    """Whether the data of a batch has sample weights."""
    if isinstance(batch, WeightedBatch):
        return batch.has_weights
    if isinstance(batch, list | tuple) and len(batch) > 3:
        return False  # As in `weighted`.
    return keras.utils.unpack_x_y_sample_weight(batch)[2] is not None


def count_examples(batch: Any) -> tf.Tensor:
    """The examples in a replica's batch, a float32 scalar."""
    real = real_rows(batch)
    if real is not None:
        return tf.reduce_sum(real)
    return tf.cast(count_rows(batch), tf.float32)


def align(real: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Reshapes marks of shape `[batch]` to broadcast against `values`.

    Args:
        real: of shape `[batch]`.
        values: of shape `[batch, ...]`.
    """
    return tf.reshape(real, [-1] + [1] * (values.shape.rank - 1))
