"""Batches over examples with random access: any step in O(1)."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.data.batches import Batches, Resume, endless
from trainer.data.examples import ArrayExamples, Examples
from trainer.data.sharding import even_piece, piece_bounds
from trainer.data.stacks import (
    READERS,
    READY,
    Stack,
    fit_on_device,
    row_stack_size,
    stack_size,
    why_not_stacked,
)
from trainer.errors import UserError
from trainer.runtime.graph import converted, plain
from trainer.values.annotations import Positive
from trainer.values.configurable import checked

# A step that no run reaches.
_FAR = 2**62


@checked
class IndexedBatches(Batches):
    """Global batches of examples, optionally in a seeded global shuffle.

    Epoch e visits the examples in the order of a pseudo-random permutation
    keyed by (seed, e). `tf.random.experimental.index_shuffle` evaluates it one
    index at a time, so step n does not depend on earlier steps. Only the
    examples of this input pipeline's replicas are read.

    Args:
        examples: the examples to read.
        batch_size: examples in a global batch.
        seed: the seed of the permutations.
        shuffle: whether to permute the examples.
        drop_remainder: leave out an epoch's last, short batch.

    Raises:
        UserError: the batch size is not positive, or there is no full batch.
    """

    examples: Examples
    batch_size: int
    steps_per_epoch: int
    last_size: int
    resume = Resume.SEEK

    def __init__(
        self,
        examples: Examples,
        *,
        batch_size: Positive,
        seed: int = 0,
        shuffle: bool = False,
        drop_remainder: bool = False,
    ) -> None:
        whole, rest = divmod(examples.size, batch_size)
        self.steps_per_epoch = whole + (rest > 0 and not drop_remainder)
        if not self.steps_per_epoch:
            raise UserError(
                f"batch_size = {batch_size} is larger than the {examples.size} "
                "examples, and a short batch would be dropped. Choose at "
                f"most {examples.size}."
            )
        self.batch_size = batch_size
        self.examples = examples
        self._seed = seed
        self._shuffle = shuffle
        self.last_size = batch_size if rest == 0 or drop_remainder else rest

    def pieces(
        self,
        *,
        start: int,
        every: int = 1,
        replicas: range,
        num_replicas: int,
        micro: int,
    ) -> tf.data.Dataset:
        """See `Batches.pieces`."""
        per_step = micro * len(replicas)
        # A static size, if all batches have it: XLA and TPUs need the shape.
        piece_size = (
            even_piece(self.batch_size, micro=micro, num_replicas=num_replicas)
            if self.last_size == self.batch_size
            else None
        )
        begins, ends = self._bounds(
            micro=micro, replicas=replicas, num_replicas=num_replicas
        )

        def read(number: tf.Tensor) -> Any:
            step = start + number // per_step * every
            piece = number % per_step
            epoch = step // self.steps_per_epoch
            batch = step % self.steps_per_epoch
            is_last = tf.cast(batch == self.steps_per_epoch - 1, tf.int64)
            # The bounds in the last batch follow those in a full one.
            row = is_last * per_step + piece
            first = batch * self.batch_size
            positions = tf.range(
                first + tf.gather(begins, row), first + tf.gather(ends, row)
            )
            positions = tf.ensure_shape(positions, [piece_size])
            return converted(self.examples.gather)(
                self._order(epoch, positions)
            )

        # Count pieces, not steps: a nested dataset for each step (flat_map)
        # costs more than reading a small batch.
        dataset = tf.data.Dataset.counter().map(
            # Deterministic, because the order is part of the run.
            plain(read),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return _as_it_is(endless(dataset).prefetch(tf.data.AUTOTUNE))

    @property
    def arrays(self) -> Any:
        """See `Batches`."""
        if isinstance(self.examples, ArrayExamples):
            return self.examples.arrays
        return None

    def columns(self) -> Any:
        """See `Batches.columns`."""
        if self._has_own_pieces:
            return super().columns()
        columns = self.examples.columns()
        return columns if fit_on_device(columns) else None

    def why_not_stacked(self) -> str | None:
        """See `Batches.why_not_stacked`."""
        if self._has_own_pieces:
            return super().why_not_stacked()
        return why_not_stacked(self.element_spec, short=True)

    def stack_size(self) -> int:
        """See `Batches.stack_size`."""
        if self._has_own_pieces:
            return super().stack_size()
        # A short batch cannot be in the middle of a stack.
        full = self._full_batches if self._has_short else None
        if self.columns() is not None:
            return row_stack_size(batch_size=self.batch_size, full_batches=full)
        return stack_size(
            self.element_spec, batch_size=self.batch_size, full_batches=full
        )

    def stacks(self, *, start: int, stop: int | None = None) -> tf.data.Dataset:
        """See `Batches.stacks`; a short batch is a stack of its own."""
        if self._has_own_pieces:
            return super().stacks(start=start, stop=stop)
        size = self.stack_size()
        # Where there is no end, one that no run reaches.
        end = _FAR if stop is None else start + stop
        # Full batches between two short ones, and the stacks that they make.
        full = self._full_batches if self._has_short else _FAR
        per_round = -(-full // size) + self._has_short

        def stack_of(step: int) -> int:
            rounds, batch = divmod(step, full + self._has_short)
            return rounds * per_round + (
                per_round - 1 if batch == full else batch // size
            )

        def read(number: tf.Tensor) -> Stack:
            rounds, inside = number // per_round, number % per_round
            first = tf.minimum(inside * size, full)
            is_short = first == full
            count = tf.where(is_short, one, tf.minimum(full - first, size))
            shape: Any = [size, self.batch_size]
            if self._has_short:
                shape = tf.where(is_short, [1, self.last_size], shape)
            step = rounds * (full + self._has_short) + first
            use = tf.clip_by_value(
                tf.constant([start, end], tf.int64) - step, 0, count
            )
            batches = self._stack(step, shape)
            return Stack(batches, *tf.unstack(tf.cast(use, tf.int32)))

        one = tf.constant(1, tf.int64)
        last = _FAR if stop is None else stack_of(max(end - 1, start)) + 1
        return _as_it_is(
            tf.data.Dataset.range(stack_of(start), last)
            .map(
                plain(read),
                num_parallel_calls=READERS,
                deterministic=True,
            )
            .prefetch(READY)
        )

    @property
    def _has_own_pieces(self) -> bool:
        """Whether a subclass reads in another way than this class does."""
        return type(self).pieces is not IndexedBatches.pieces

    @property
    def _has_short(self) -> bool:
        """Whether an epoch ends with a short batch."""
        return self.last_size < self.batch_size

    @property
    def _full_batches(self) -> int:
        """How many full batches an epoch has."""
        return self.steps_per_epoch - self._has_short

    def _stack(self, step: tf.Tensor, shape: Any) -> Any:
        """Reads consecutive batches of one size, or numbers their rows.

        Args:
            step: int64 scalar, that of the first batch.
            shape: how many batches, and how many examples in each.
        """
        epoch = step // self.steps_per_epoch
        begin = step % self.steps_per_epoch * self.batch_size
        count = tf.reduce_prod(tf.cast(shape, tf.int64))
        # An epoch's examples, but for those that are left out of every epoch.
        of_epoch = tf.constant(
            self._full_batches * self.batch_size
            + self._has_short * self.last_size,
            tf.int64,
        )

        def of_one_epoch(number: tf.Tensor, numbers: tf.TensorArray) -> Any:
            first = tf.where(number == 0, begin, tf.zeros_like(begin))
            last = tf.minimum(begin + count - number * of_epoch, of_epoch)
            order = self._order(epoch + number, tf.range(first, last))
            return number + 1, numbers.write(tf.cast(number, tf.int32), order)

        epochs = -(-(begin + count) // of_epoch)
        numbers = tf.TensorArray(
            tf.int64,
            tf.cast(epochs, tf.int32),
            infer_shape=False,
            element_shape=[None],
        )
        _, numbers = tf.while_loop(
            lambda number, _: number < epochs,
            of_one_epoch,
            (tf.constant(0, tf.int64), numbers),
        )
        rows = tf.reshape(numbers.concat(), shape)
        if self.columns() is not None:
            return rows
        return converted(self.examples.gather_batches)(rows, self.element_spec)

    def _bounds(self, **cut: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns begin and end of the pieces of a full and the last batch."""
        pieces = np.arange(cut["micro"] * len(cut["replicas"]))
        rows = [
            piece_bounds(size, pieces, **cut)
            for size in (self.batch_size, self.last_size)
        ]
        begins, ends = np.concatenate(rows, axis=1)
        with tf.device("CPU:0"):
            return tf.constant(begins, tf.int64), tf.constant(ends, tf.int64)

    def _order(self, epoch: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Returns the examples at these positions of an epoch."""
        if not self._shuffle:
            return positions
        # `index_shuffle` takes 32-bit seeds; a negative one wraps around.
        key = tf.constant(self._seed & 0xFFFFFFFF, tf.uint32)
        seed = tf.stack([key, tf.cast(epoch, tf.uint32)])
        last = tf.constant(self.examples.size - 1, tf.int64)
        # The operation rejects an empty vector, so add one index.
        padded = tf.pad(positions, [[0, 1]])
        order = tf.random.experimental.index_shuffle(padded, seed, last)
        return order[:-1]


def _as_it_is(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps tf.data from rewriting the graph of a dataset.

    It would copy all tensors that a function captures, here the user's arrays,
    for as long as an iterator lives; and what it rewrites is not there: the
    `map` is parallel already, and nothing can be fused.
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
