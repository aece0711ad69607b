"""BatchNormalization over the global batch, without masked values.

Keras takes the variance over replicas as E[x^2] - E[x]^2. That cancels digits:
inputs with a mean of 1000 and a spread of 1 lose all of them in float32, on
several replicas only. Here it is the mean of the squared differences, as it is
on one device. Keras also makes five reductions for each layer; here are three.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.step.gradients import reduce_sum
from trainer.step.keras.private import all_layers, replace_moments


def synchronize(model: keras.Model) -> None:
    """Makes every BatchNormalization take its statistics over all replicas."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


@contextlib.contextmanager
def synchronized(model: keras.Model) -> Iterator[None]:
    """Lets every BatchNormalization be synchronized for a while."""
    layers = [
        layer
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    before = [
        (layer.synchronized, vars(layer).get("_moments")) for layer in layers
    ]
    synchronize(model)
    for layer, (_, moments_before) in zip(layers, before, strict=True):
        if moments_before is None:
            replace_moments(layer, moments, masked_moments)
    try:
        yield
    finally:
        for layer, (was_synchronized, own) in zip(layers, before, strict=True):
            layer.synchronized = was_synchronized
            if own is None:
                object.__delattr__(layer, "_moments")


def replace_moments_of(model: keras.Model) -> None:
    """Replaces how layers that are synchronized take their statistics.

    Behind a mask, Keras takes each replica's own.
    """
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            replace_moments(layer, moments, masked_moments)


def moments(inputs: tf.Tensor, axes: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all replicas' inputs.

    Args:
        inputs: of shape `[batch, ...]`.
        axes: which to take them over.

    Returns:
        Two tensors of the inputs' dtype, without these axes.
    """
    dtype = inputs.dtype
    mean, variance = _moments(tf.cast(inputs, _wide(dtype)), axes)
    if dtype == tf.float16:
        # As Keras does: what is too large becomes the largest number.
        mean, variance = (
            tf.clip_by_value(one, dtype.min, dtype.max)
            for one in (mean, variance)
        )
    return tf.cast(mean, dtype), tf.cast(variance, dtype)


def _moments(inputs: tf.Tensor, axes: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    @tf.custom_gradient
    def of(x: tf.Tensor) -> tuple[Any, Callable[..., tf.Tensor]]:
        total, count = reduce_sum(
            [
                tf.reduce_sum(x, axes, keepdims=True),
                tf.reduce_sum(tf.ones_like(x), axes, keepdims=True),
            ]
        )
        mean = tf.math.divide_no_nan(total, count)
        squares = tf.reduce_sum(tf.square(x - mean), axes, keepdims=True)
        (spread,) = reduce_sum([squares])
        variance = tf.math.divide_no_nan(spread, count)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            # Both at once. TensorFlow would make a reduction of its own for
            # each sum above.
            of_mean, of_variance = reduce_sum([of_mean, of_variance])
            # The variance does not depend on x by way of the mean.
            per_example = of_mean + 2.0 * of_variance * (x - mean)
            return tf.math.divide_no_nan(per_example, count)

        return (mean, variance), gradient

    mean, variance = of(inputs)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _wide(dtype: tf.DType) -> tf.DType:
    """What statistics are taken in: float16 has too small a range."""
    return tf.float32 if dtype.size < 4 else dtype


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
