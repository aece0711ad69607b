"""Dynamic loss scaling for `mixed_float16`, agreed on by all replicas.

Float16 gradients underflow, so the loss is multiplied by a large scale and
the gradients are divided by it. Whether they overflowed is decided on the
reduced gradients, which are equal on every replica: all skip the update or
none does. But a replica sums fewer examples in float16 than one device would,
so which step overflows depends on how many there are. Method: Micikevicius et
al., "Mixed Precision Training", 2018 (https://arxiv.org/abs/1710.03740).
"""

import tensorflow as tf


class LossScale:
    """The scale and its adjustment; a checkpoint must hold its variables.

    Args:
        initial: the first scale.
        growth_steps: good steps in a row after which the scale doubles.
    """

    # The defaults are those of keras.optimizers.LossScaleOptimizer.
    def __init__(
        self, initial: float = 2.0**15, growth_steps: int = 2000
    ) -> None:
        self._growth_steps = growth_steps
        self._scale = tf.Variable(
            initial, dtype=tf.float32, trainable=False, name="loss_scale"
        )
        self._good_steps = tf.Variable(
            0, dtype=tf.int64, trainable=False, name="loss_scale_good_steps"
        )

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables to save in a checkpoint."""
        return [self._scale, self._good_steps]

    @property
    def value(self) -> tf.Tensor:
        """The scale, a float32 scalar."""
        return self._scale.read_value()

    def update(self, finite: tf.Tensor) -> None:
        """Halves the scale after an overflow, doubles it after many steps.

        Call it in cross-replica context.

        Args:
            finite: boolean scalar, whether this step's gradients were finite.
        """
        none = tf.constant(0, tf.int64)
        good = tf.where(finite, self._good_steps.read_value() + 1, none)
        grow = good >= self._growth_steps
        scale = self.value
        # Below 1 a scale would only underflow more: gradients that still are
        # not finite are the model's fault, not the scale's.
        scale = tf.where(finite, scale, tf.maximum(scale / 2, 1.0))
        self._scale.assign(tf.where(grow, scale * 2, scale))
        self._good_steps.assign(tf.where(grow, none, good))
