"""Reads the micro-batches of a step, and times the wait for them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.runtime.tensorflow_private import is_deterministic


class Given:
    """Stands for an iterator where a program gets its batches as arguments.

    Args:
        batches: of one step, in their order.
        waited: float32 scalar, the seconds that it waited for them.
    """

    def __init__(
        self, batches: Sequence[Any], waited: tf.Tensor | float = 0.0
    ) -> None:
        self._batches = iter(batches)
        self.waited = tf.convert_to_tensor(waited)

    def __next__(self) -> Any:
        return next(self._batches)


def read(iterator: Any, count: int = 1) -> tuple[tuple[Any, ...], tf.Tensor]:
    """The next micro-batches, while a step is traced.

    A clock is not a deterministic op, and TensorFlow refuses it where only
    deterministic ones are allowed: then nothing is measured.

    Args:
        iterator: what `StrategyPlugin.distribute` returned, or a stand-in.
        count: how many micro-batches.

    Returns:
        The micro-batches, and the seconds that the step waited for them, a
        float32 scalar.
    """
    if isinstance(iterator, Given):
        return tuple(next(iterator) for _ in range(count)), iterator.waited
    if is_deterministic():
        return tuple(next(iterator) for _ in range(count)), tf.constant(0.0)
    # On the host: an accelerator's clock has another zero.
    with tf.device("CPU:0"):
        before = tf.timestamp()
    # Nothing else orders the clock and the input: neither uses the other's
    # result.
    with tf.control_dependencies([before]):
        batches = tuple(next(iterator) for _ in range(count))
    leaves = tf.nest.flatten(batches, expand_composites=True)
    with tf.control_dependencies(leaves), tf.device("CPU:0"):
        # Subtracted in float64: float32 cannot tell seconds apart since 1970.
        waited = tf.cast(tf.timestamp() - before, tf.float32)
    return batches, waited
