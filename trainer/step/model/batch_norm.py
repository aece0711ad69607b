"""BatchNormalization over the global batch, without masked values."""

from typing import Any

import keras
import tensorflow as tf

from trainer.step.gradients import reduce_sum
from trainer.step.model.keras_private import all_layers, replace_masked_moments


def synchronize(model: keras.Model) -> None:
    """Makes every BatchNormalization take its statistics over all replicas."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


def synchronize_masked(model: keras.Model) -> None:
    """Does so behind a mask, too, where Keras takes each replica's own."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            replace_masked_moments(layer, masked_moments)


def masked_moments(
    inputs: tf.Tensor, mask: Any, axes: list[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all replicas' inputs that a mask lets pass.

    The formula is the one that Keras uses on one device.

    Args:
        inputs: of shape `[batch, ...]`.
        mask: the same without the last axis, true where a value counts.
        axes: which to take them over.
    """
    # [batch, ...] -> [batch, ..., features].
    counted = tf.broadcast_to(
        tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs)
    )
    zero = tf.zeros([], inputs.dtype)
    # The mean must be known before the squares are taken, so there are two
    # reductions. E[x^2] - E[x]^2 would need one, but cancels digits.
    total, count = reduce_sum(
        [
            tf.reduce_sum(tf.where(counted, inputs, zero), axes, keepdims=True),
            tf.reduce_sum(tf.cast(counted, inputs.dtype), axes, keepdims=True),
        ]
    )
    # Keras adds it against a mask that leaves nothing.
    divisor = count + keras.config.epsilon()
    mean = total / divisor
    squares = tf.square(tf.where(counted, inputs - mean, zero))
    (spread,) = reduce_sum([tf.reduce_sum(squares, axes, keepdims=True)])
    return tf.squeeze(mean, axes), tf.squeeze(spread / divisor, axes)
