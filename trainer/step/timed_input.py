"""Reads what a step takes, and how long the step waited for it."""

from typing import Any

import tensorflow as tf

# No public name tells whether determinism was asked for.
from tensorflow.python.framework import config


def read(iterator: Any, count: int = 1) -> tuple[tuple[Any, ...], tf.Tensor]:
    """The next micro-batches, while a step is traced.

    A clock is not a deterministic op: where only those are allowed, nothing
    is measured.

    Args:
        iterator: what `StrategyPlugin.distribute` returned.
        count: how many micro-batches.

    Returns:
        The micro-batches, and the seconds that they were waited for, a
        float32 scalar.
    """
    if config.is_op_determinism_enabled():
        return tuple(next(iterator) for _ in range(count)), tf.constant(0.0)
    # Clocks of accelerators do not start where the host's does.
    with tf.device("CPU:0"):
        before = tf.timestamp()
    with tf.control_dependencies([before]):
        batches = tuple(next(iterator) for _ in range(count))
    leaves = tf.nest.flatten(batches, expand_composites=True)
    with tf.control_dependencies(leaves), tf.device("CPU:0"):
        waited = tf.cast(tf.timestamp() - before, tf.float32)
    return batches, waited
