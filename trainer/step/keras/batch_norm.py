"""BatchNormalization over the global batch, without masked values.

Keras takes the variance over replicas as E[x^2] - E[x]^2. That cancels digits:
inputs with a mean of 1000 and a spread of 1 lose all of them in float32, on
several replicas only. Here it is the mean of the squared differences, as it is
on one device. Keras also makes five reductions for each layer; here are three.
Behind a mask, Keras takes each replica's own statistics.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.step.context import step_context
from trainer.step.gradients import reduce_sum
from trainer.step.keras.private import all_layers, replace_moments


def synchronize(model: keras.Model) -> None:
    """Makes every BatchNormalization take its statistics over all replicas."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


def replace_moments_of(model: keras.Model) -> None:
    """Replaces how layers that are synchronized take their statistics."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            replace_moments(layer, moments)


def moments(
    inputs: tf.Tensor, mask: Any, axes: list[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all replicas' inputs that a mask lets pass.

    The formulas are those that Keras uses on one device.

    Args:
        inputs: float32 or float64 of shape `[batch, ..., features]`.
        mask: the same without the last axis, true where a value counts;
            `None` where all do.
        axes: which to take them over.

    Returns:
        Two tensors without these axes.
    """
    counted = None
    if mask is not None:
        # [batch, ...] -> [batch, ..., features].
        counted = tf.cast(mask, tf.bool)[..., tf.newaxis]
        counted = tf.broadcast_to(counted, tf.shape(inputs))

    here = step_context.batch

    def kept(x: tf.Tensor) -> tf.Tensor:
        if counted is not None:
            x = tf.where(counted, x, tf.zeros_like(x))
        return x if here is None else here.or_zeros(x)

    def summed(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(kept(x), axes, keepdims=True)

    @tf.custom_gradient
    def of(x: tf.Tensor) -> tuple[Any, Callable[..., tf.Tensor]]:
        total, count = reduce_sum([summed(x), summed(tf.ones_like(x))])
        if counted is not None:
            # Keras adds it against a mask that leaves nothing.
            count += keras.config.epsilon()
        mean = tf.math.divide_no_nan(total, count)
        # The mean must be known before the squares are taken.
        (spread,) = reduce_sum([summed(tf.square(x - mean))])
        variance = tf.math.divide_no_nan(spread, count)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            # Both at once. TensorFlow would make a reduction of its own for
            # each sum above.
            both = [of_mean, of_variance]
            if here is not None:
                both = here.or_zeros(both)
            of_mean, of_variance = reduce_sum(both)
            # The variance does not depend on x by way of the mean.
            per_example = of_mean + 2.0 * of_variance * (x - mean)
            return kept(tf.math.divide_no_nan(per_example, count))

        return (mean, variance), gradient

    mean, variance = of(inputs)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)
