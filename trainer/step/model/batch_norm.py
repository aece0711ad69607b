"""BatchNormalization over the whole global batch, masked values left out."""

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
    """Makes it so behind a mask, too, where Keras takes a replica's own."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            replace_masked_moments(layer, masked_moments)


def masked_moments(
    inputs: tf.Tensor, mask: Any, axes: list[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of what a mask leaves of all replicas' inputs.

    The formula is the one that Keras has for one device.

    Args:
        inputs: of shape `[batch, ...]`.
        mask: the same without the last axis, true where a value counts.
        axes: which to take them over.
    """
    counted = tf.broadcast_to(
        tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs)
    )
    zero = tf.zeros([], inputs.dtype)
    total, count = reduce_sum(
        [
            tf.reduce_sum(tf.where(counted, inputs, zero), axes, keepdims=True),
            tf.reduce_sum(tf.cast(counted, inputs.dtype), axes, keepdims=True),
        ]
    )
    divisor = count + keras.config.epsilon()
    mean = total / divisor
    squares = tf.square(tf.where(counted, inputs - mean, zero))
    (spread,) = reduce_sum([tf.reduce_sum(squares, axes, keepdims=True)])
    return tf.squeeze(mean, axes), tf.squeeze(spread / divisor, axes)
