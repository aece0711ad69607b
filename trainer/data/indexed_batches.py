"""Batches over examples with random access: any step in O(1)."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.data.batches import (
    WHOLE,
    Batches,
    Cut,
    NextRange,
    Resume,
    endless,
    first_steps_after,
    position_of,
)
from trainer.data.examples import Examples
from trainer.data.stacks import MOST_BYTES
from trainer.errors import UserError
from trainer.runtime.graph import converted, plain
from trainer.values.annotations import Positive
from trainer.values.configurable import checked

# What `tf.random.experimental.index_shuffle` puts before its two seeds.
_FIRST_SEED = 498247692


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
    can_skip = True

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
        self._has_short = rest > 0 and not drop_remainder
        self._full_batches = whole
        self.steps_per_epoch = whole + self._has_short
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
        self.last_size = rest if self._has_short else batch_size

    def read(self, *, start: Any, cut: Cut = WHOLE) -> tf.data.Dataset:
        """See `Batches.read`."""
        # Count replica batches, not steps: a nested dataset for each step
        # (flat_map) costs more than reading a small batch.
        return self._read(tf.data.Dataset.counter(), start, cut)

    def read_named(
        self, next_range: NextRange, *, start: int, cut: Cut
    ) -> tf.data.Dataset:
        """See `Batches.read_named`; nothing else is read."""

        def numbers(first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
            end = first + count
            return tf.data.Dataset.range(first * cut.reads, end * cut.reads)

        ranges = tf.data.Dataset.counter().map(plain(next_range))
        return self._read(ranges.flat_map(plain(numbers)), start, cut)

    def _read(
        self, numbers: tf.data.Dataset, start: Any, cut: Cut
    ) -> tf.data.Dataset:
        # A static size, if all batches have it: XLA and TPUs need the shape.
        even = None if self._has_short else cut.even_size(self.batch_size)
        # Of a full batch, and of the last one of an epoch.
        inside = np.arange(cut.reads)
        sizes = (self.batch_size, self.last_size)
        bounds = np.stack([cut.bounds(size, inside) for size in sizes], -1)
        with tf.device("CPU:0"):
            begins, ends = tf.unstack(tf.constant(bounds, tf.int64))
            gaps = tf.constant(first_steps_after(self.skipped), tf.int64)

        def read(number: tf.Tensor) -> Any:
            position = start + number // cut.reads
            if self.skipped:
                position += tf.searchsorted(
                    gaps, position[None], "right", tf.int64
                )[0]
            is_last = position % self.steps_per_epoch == self._full_batches
            at = tf.stack([number % cut.reads, tf.cast(is_last, tf.int64)])
            rows = tf.range(tf.gather_nd(begins, at), tf.gather_nd(ends, at))
            rows = tf.ensure_shape(rows, [even])
            return converted(self.examples.gather)(
                self._numbers(position, rows)
            )

        dataset = numbers.map(
            # Deterministic, because the order is part of the run.
            plain(read),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return _as_it_is(endless(dataset).prefetch(tf.data.AUTOTUNE))

    @property
    def arrays(self) -> Any:
        """See `Batches`."""
        return self.examples.columns()

    def why_not_stacked(self) -> str | None:
        """See `Batches.why_not_stacked`."""
        if type(self).read is not IndexedBatches.read:
            return f"{type(self).__name__} reads its batches in its own way"
        if self.arrays is None:
            return "the examples are not plain arrays, or have a transform"
        columns = tf.nest.flatten(self.arrays)
        if any(column.dtype == tf.string for column in columns):
            return "the data holds a tensor of string"
        size = sum(one.shape.num_elements() * one.dtype.size for one in columns)
        if size > MOST_BYTES:
            return f"the data has {size:,} bytes; at most {MOST_BYTES:,} do"
        return None

    def rows_of(self, first: int, most: int) -> tf.Tensor:
        """See `Batches.rows_of`."""
        steps = range(first, first + most)
        positions = [position_of(step, self.skipped) for step in steps]
        short = [
            p % self.steps_per_epoch == self._full_batches for p in positions
        ]
        count = [*short, not short[0]].index(not short[0])
        size = self.last_size if short[0] else self.batch_size
        with tf.device("CPU:0"):
            taken = tf.constant(positions[:count], tf.int64)
            rows = tf.range(tf.constant(size, tf.int64))
            return self._numbers(taken[:, tf.newaxis], rows)

    def _numbers(self, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of the examples in batches.

        Args:
            positions: int64, of the batches.
            rows: int64, within each of them; shapes broadcast.
        """
        places = positions % self.steps_per_epoch * self.batch_size + rows
        if not self._shuffle:
            return places
        epochs = positions // self.steps_per_epoch + tf.zeros_like(rows)
        index, epochs = tf.reshape(places, [-1]), tf.reshape(epochs, [-1])
        # `index_shuffle` takes 32-bit seeds; a negative one wraps around.
        keys = tf.constant([_FIRST_SEED, self._seed & 0xFFFFFFFF], tf.uint32)
        seeds = tf.concat(
            [
                tf.broadcast_to(keys, [tf.size(index), 2]),
                tf.cast(epochs, tf.uint32)[:, None],
            ],
            axis=1,
        )
        # The operation itself, for `index_shuffle` takes one epoch only. It
        # rejects an empty vector, so add one index.
        order = tf.raw_ops.RandomIndexShuffle(
            index=tf.pad(index, [[0, 1]]),
            seed=tf.pad(seeds, [[0, 1], [0, 0]]),
            max_index=tf.constant(self.examples.size - 1, tf.int64),
            rounds=4,
        )
        order = tf.reshape(order[:-1], tf.shape(places))
        return tf.ensure_shape(order, places.shape)


def _as_it_is(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps tf.data from rewriting the graph of a dataset.

    It would copy all tensors that a function captures, here the user's arrays,
    for as long as an iterator lives; and what it rewrites is not there: the
    `map` is parallel already, and nothing can be fused.

    Nor may tf.data tune it: an iterator that is dropped waits for the thread
    that does, up to a minute after long runs, and keeps Python's lock
    meanwhile, so that no signal is answered either.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
