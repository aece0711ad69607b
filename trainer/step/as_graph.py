"""XLA draws the random numbers that TensorFlow's graph draws.

Both make the same Philox bits from a seed, but XLA makes different floats from
these bits, and treats negative seeds differently. Where `StepContext` says so,
floats are made of the bits as TensorFlow's kernels make them: uniform numbers,
and so dropout masks, are equal to the last bit, and normal ones up to the
rounding of XLA's logarithm, sine and cosine. What is drawn in any other way is
found in the trace, see `trainer.step.form_rule.other_numbers`.
"""

import math
from typing import Any

import tensorflow as tf

from trainer.runtime import tensorflow_private as private
from trainer.step.context import step_context

# By dtype: the bits of a mantissa, those of the number one, and the unsigned
# type of that size.
_FLOATS = {
    tf.float16: (0x3FF, 0x3C00, tf.uint16),
    tf.bfloat16: (0x7F, 0x3F80, tf.uint16),
    tf.float32: (0x7FFFFF, 0x3F800000, tf.uint32),
}
_PHILOX = (private.PHILOX, private.AUTO_SELECT)


def _takes_over(algorithm: Any, dtype: Any) -> bool:
    # It may also be a tensor, which leaves it to the device.
    is_philox = isinstance(algorithm, int) and algorithm in _PHILOX
    return (
        step_context.draws_as_graph
        and is_philox
        and tf.as_dtype(dtype) in _FLOATS
    )


def _unit(shape: Any, key: Any, counter: Any, dtype: tf.DType) -> tf.Tensor:
    """Uniform numbers in [0, 1): a random mantissa behind a one, less one."""
    bits = private.draw_bits(
        shape, key=key, counter=counter, dtype=tf.uint32, alg=private.PHILOX
    )
    mantissa, one, unsigned = _FLOATS[dtype]
    number = tf.bitwise.bitwise_or(
        tf.bitwise.bitwise_and(bits, tf.constant(mantissa, tf.uint32)),
        tf.constant(one, tf.uint32),
    )
    return tf.bitcast(tf.cast(number, unsigned), dtype) - tf.ones([], dtype)


def _uniform(
    shape: Any,
    key: Any,
    counter: Any,
    alg: Any,
    dtype: Any = tf.float32,
    name: str | None = None,
) -> Any:
    if _takes_over(alg, dtype):
        return _unit(shape, key, counter, tf.as_dtype(dtype))
    return private.draw_uniform(
        shape, key=key, counter=counter, alg=alg, dtype=dtype, name=name
    )


def _normal(
    shape: Any,
    key: Any,
    counter: Any,
    alg: Any,
    dtype: Any = tf.float32,
    name: str | None = None,
) -> Any:
    if not _takes_over(alg, dtype):
        return private.draw_normal(
            shape, key=key, counter=counter, alg=alg, dtype=dtype, name=name
        )
    # As BoxMullerFloat in tensorflow/core/lib/random/random_distributions.h.
    size = tf.reduce_prod(shape)
    pairs = _unit(tf.stack([(size + 1) // 2, 2]), key, counter, tf.float32)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(pairs[:, 0], 1e-7)))
    angle = 2.0 * math.pi * pairs[:, 1]
    both = tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], -1)
    return tf.cast(tf.reshape(tf.reshape(both, [-1])[:size], shape), dtype)


def _key(seed: Any, alg: Any) -> Any:
    # Named, the algorithm also gives XLA the graph's key.
    if step_context.draws_as_graph and not tf.is_tensor(alg):
        number = (
            private.AUTO_SELECT
            if alg is None
            else private.algorithm_number(alg)
        )
        alg = private.PHILOX if number == private.AUTO_SELECT else alg
    return private.key_counter_algorithm(seed, alg)


def install() -> None:
    """Lets all that draws keyed random numbers draw by way of this file."""
    private.random_operations.stateless_random_uniform_v2 = _uniform
    private.random_operations.stateless_random_normal_v2 = _normal
    private.random_keys.get_key_counter_alg = _key
