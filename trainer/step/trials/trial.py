"""Calls model and loss on a few examples without side effects.

Whether a user's loss or layer treats examples separately cannot be seen from
its code. So it is called, before the first step, on some examples, and on the
same examples beside others.
"""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.step.keras.private import keras_mask, set_keras_mask
from trainer.step.spec import StepSpec

TRIAL_STREAM = 2
_ROWS = 4  # Even: a half, twice over, must have as many rows as the whole.


def first_batch(spec: StepSpec, *, training: bool) -> Any:
    """The first global batch of a split, whole."""
    pieces = spec.batches("train" if training else "eval").pieces(
        start=0, replicas=range(1), num_replicas=1, micro=1
    )
    return next(iter(pieces))


class Trial:
    """Some examples of the first batch, and calls with them.

    Args:
        spec: what the step is made of.
        batch: the first batch of a split, whole.

    Attributes:
        count: how many there are, an even number; none if the batch has
            fewer than two, or sparse parts.
    """

    def __init__(self, spec: StepSpec, batch: Any) -> None:
        self.spec = spec
        leaves = tf.nest.flatten(batch)
        sparse = any(isinstance(leaf, tf.SparseTensor) for leaf in leaves)
        self.count = 0
        if not sparse:
            self.count = min(_ROWS, int(leaves[0].shape[0])) // 2 * 2
        self._batch = batch

    @functools.cached_property
    def batch(self) -> Any:
        """The examples."""
        return tf.nest.map_structure(
            lambda leaf: leaf[: self.count], self._batch
        )

    @property
    def halves(self) -> tuple[list[int], list[int]]:
        """The numbers of the examples in each half."""
        half = self.count // 2
        return [*range(half)], [*range(half, self.count)]

    def rows(self, structure: Any, index: list[int]) -> Any:
        """Some rows of the parts that have one row for each example."""

        def pick(part: Any) -> Any:
            if not part.shape.rank or part.shape[0] != self.count:
                return part
            picked, mask = tf.gather(part, index), keras_mask(part)
            if mask is not None:
                set_keras_mask(picked, tf.gather(mask, index))
            return picked

        return tf.nest.map_structure(pick, structure)

    def call(self, index: list[int], *, training: bool, draw: int = 0) -> Any:
        """Calls the model on some of the examples.

        Args:
            index: their numbers.
            training: whether as in training.
            draw: another number draws other random numbers.
        """
        x, _, _ = keras.utils.unpack_x_y_sample_weight(
            self.rows(self.batch, index)
        )
        spec = self.spec
        at = spec.parts.randomness.at(tf.constant(0), draw, TRIAL_STREAM)
        listening = spec.parts.metrics.in_layers.listening()
        with at, keras.StatelessScope(), listening:
            return spec.methods.forward(x, training=training)


def near(left: Any, right: Any) -> bool:
    """Equal up to rounding, which differs with the number of rows."""
    left, right = np.asarray(left), np.asarray(right)
    if left.shape != right.shape:
        return False
    # Small numbers beside large ones have the rounding errors of the large
    # ones.
    scale = max(1e-6, float(np.max(np.abs(left), initial=0.0)))
    if not np.isfinite(scale):
        scale = 1.0
    return np.allclose(
        left, right, rtol=1e-4, atol=1e-5 * scale, equal_nan=True
    )
