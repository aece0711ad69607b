"""Stacks of batches by the numbers of their rows, for a compiled loop."""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

if TYPE_CHECKING:  # They number their rows.
    from trainer.data.batches import Batches

# Steps in a program. All its stacks have this size, or each number of steps
# would be compiled again; more batches gain little.
SIZE = 100
# An accelerator has to hold larger arrays beside the model.
MOST_BYTES = 1 << 30


class Rows(NamedTuple):
    """Batches as numbers of rows, which a step gathers on its device.

    Attributes:
        columns: a structure of tensors of shape `[examples, ...]`.
        numbers: int64, of shape `[SIZE, batch]`.
    """

    columns: Any
    numbers: Any

    def batch(self, index: tf.Tensor) -> Any:
        """One of them, in a graph."""
        return tf.nest.map_structure(
            lambda column: tf.gather(column, self.numbers[index]), self.columns
        )


class StackReader:
    """Hands out the batches of a single replica, many at once.

    Args:
        batches: say nothing against stacks, see `Batches.why_not_stacked`.
        start: the step that takes the first one.
    """

    def __init__(self, batches: "Batches", *, start: int) -> None:
        self._batches, self._step = batches, start

    @functools.cached_property
    def _columns(self) -> Any:
        # On the device of the caller, once; where they are there already,
        # nothing is copied.
        return tf.nest.map_structure(tf.identity, self._batches.arrays)

    def spec(self) -> Rows:
        """Returns the specification of what `take` returns."""
        size, last = self._batches.batch_size, self._batches.last_size
        numbers = tf.TensorSpec(
            [SIZE, size if size == last else None], tf.int64
        )
        columns = tf.nest.map_structure(
            tf.TensorSpec.from_tensor, self._columns
        )
        return Rows(columns, numbers)

    def take(self, most: int) -> tuple[Rows, int]:
        """The next batches, and how many they are: at most so many."""
        numbers = self._batches.rows_of(self._step, min(most, SIZE))
        count = len(numbers)
        self._step += count
        rest = [[0, SIZE - count], [0, 0]]
        return Rows(self._columns, tf.pad(numbers, rest)), count
