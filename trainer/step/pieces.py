"""Pieces: a replica's part of a batch, weighed by its number of examples.

A short batch leaves some replicas (or micro-batches) with fewer examples than
others, or with none. A mean over no examples is NaN, and so is what a layer
makes of it: such a piece must contribute nothing to gradients, losses, logs
and variables. And a mean of means is the mean of all examples only where each
is weighed by its number of examples.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer.data.rows import count_rows
from trainer.step.gradients import reduce_sum
from trainer.step.keras.private import losses_left_whole
from trainer.step.padding import count_examples, real_rows
from trainer.step.reductions.average import Average

_local = threading.local()  # Mirrored replicas trace in threads of their own.


class Piece:
    """One replica's part of a (micro-)batch.

    Args:
        batch: what the replica was given.
        pieces: how many make a global batch; a single one is never empty.
        slot: says how many examples a piece has at most, where shapes must
            not change from step to step; `None` where they may.

    Attributes:
        examples: float32 scalar, how many examples there are.
        rows: the same with padding: a number, or a scalar tensor where it is
            not known while tracing.
        is_even: each replica's piece has as many.
        may_be_empty: whether there may be none.
    """

    def __init__(
        self,
        batch: Any,
        *,
        pieces: int,
        slot: Callable[[], int] | None = None,
    ) -> None:
        self.pieces = pieces
        self.slot = slot
        # Reduced on first use: most steps need no reduction for it.
        self._all_examples: tf.Tensor | None = None
        self.examples = count_examples(batch)
        known = tf.nest.flatten(batch)[0].shape[0]
        self.rows = count_rows(batch) if known is None else known
        # A static shape without padding: as many examples on each replica.
        self.is_even = real_rows(batch) is None and known is not None
        self.may_be_empty = pieces > 1 and not (self.is_even and known)

    @property
    def is_empty(self) -> tf.Tensor:
        """Whether there is no example: a boolean scalar."""
        return tf.equal(self.examples, 0.0)

    def or_zeros(self, structure: Any) -> Any:
        """The same numbers, or zeros where there is no example.

        Args:
            structure: tensors, `tf.IndexedSlices` and `None`s.
        """
        if not self.may_be_empty:
            return structure
        return tf.nest.map_structure(self._or_zero, structure)

    def or_nothing(self, mean: Average) -> Average:
        """The same average, or nothing where it is one of no example."""
        if not self.may_be_empty:
            return mean
        # Finite values stay: research code may average over other things
        # than examples.
        nothing = self.is_empty & ~tf.math.is_finite(mean.total)
        zero = tf.constant(0.0)
        return Average(
            *(
                tf.where(nothing, zero, tf.cast(part, zero.dtype))
                for part in mean
            )
        )

    def _or_zero(self, part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, tf.IndexedSlices):
            values = self._or_zero(part.values)
            return tf.IndexedSlices(values, part.indices, part.dense_shape)
        # tf.where, not a product: zero times NaN is NaN.
        return tf.where(self.is_empty, tf.zeros_like(part), part)

    @property
    def all_examples(self) -> tf.Tensor:
        """The examples of all replicas: a float32 scalar, reduced once."""
        # Not functools.cached_property: before Python 3.12 all replicas'
        # threads share its lock, and would deadlock in the reduction.
        if self._all_examples is None:
            self._all_examples = reduce_sum(self.examples)
        return self._all_examples

    @property
    def weight(self) -> tf.Tensor:
        """This piece's weight in a mean over replicas; 1 on average."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return tf.math.divide_no_nan(
            self.examples * replicas, self.all_examples
        )


class Notes:
    """Stands for a piece in a trial: nothing is assigned, only noted.

    Attributes:
        assigned: by its name, the value that a variable would have got, and
            the one that it has.
    """

    def __init__(self) -> None:
        self.assigned: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}


@contextlib.contextmanager
def open_piece(piece: Piece | Notes | None) -> Iterator[None]:
    """Weighs what layers assign to variables by the piece's examples.

    Args:
        piece: the replica's; `Notes` keep every assignment from being made,
            and with `None` each is made as it is.
    """
    before = getattr(_local, "piece", None)
    _local.piece = piece
    try:
        with losses_left_whole():
            yield
    finally:
        _local.piece = before


def current_piece() -> Piece | None:
    """The piece that this replica is working on, if there is one."""
    piece = getattr(_local, "piece", None)
    return piece if isinstance(piece, Piece) else None


def current_notes() -> Notes | None:
    """The notes that take assignments instead of variables, in a trial."""
    piece = getattr(_local, "piece", None)
    return piece if isinstance(piece, Notes) else None
