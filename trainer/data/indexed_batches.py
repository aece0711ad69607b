"""`IndexedBatches`: batches of examples, any step of them in O(1)."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.data.batches import Batches, Resume, endless
from trainer.data.examples import Examples
from trainer.data.sharding import even_piece, piece_bounds
from trainer.errors import UserError


class IndexedBatches(Batches):
    """Global batches of examples, in a seeded global shuffle.

    Epoch e visits the examples in the order of a pseudo-random permutation
    keyed by (seed, e), which `tf.random.experimental.index_shuffle` evaluates
    one index at a time: step n does not depend on the steps before it. Only
    the examples that this input pipeline's replicas need are read.

    Args:
        examples: what to read from.
        batch_size: examples in a global batch.
        seed: chooses the permutations.
        shuffle: whether to permute at all.
        drop_remainder: leave out an epoch's last, short batch.

    Raises:
        UserError: the batch size is not positive, or no batch is left.
    """

    batch_size: int
    steps_per_epoch: int
    resume = Resume.SEEK

    def __init__(
        self,
        examples: Examples,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        drop_remainder: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size = {batch_size} must be at least 1.")
        whole, rest = divmod(examples.size, batch_size)
        self.steps_per_epoch = whole + (rest > 0 and not drop_remainder)
        if not self.steps_per_epoch:
            raise UserError(
                f"batch_size = {batch_size} is more than the {examples.size} "
                "examples, and a short batch would be dropped. Choose at "
                f"most {examples.size}."
            )
        self.batch_size = batch_size
        self._examples = examples
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
        # A static size only if all pieces have it, also those of the last batch
        # of an epoch.
        piece_size = (
            even_piece(self.batch_size, micro=micro, num_replicas=num_replicas)
            if self.last_size == self.batch_size
            else None
        )
        begins, ends = self._bounds(
            micro=micro, replicas=replicas, num_replicas=num_replicas
        )

        def read(number: tf.Tensor) -> Any:
            # `number` counts this pipeline's pieces from `start` on.
            step = start + number // per_step * every
            piece = number % per_step
            # Everything follows from the step's number: nothing is counted on.
            epoch = step // self.steps_per_epoch
            batch = step % self.steps_per_epoch
            is_last = tf.cast(batch == self.steps_per_epoch - 1, tf.int64)
            # The bounds of the last batch follow those of full ones.
            row = is_last * per_step + piece
            first = batch * self.batch_size
            places = tf.range(
                first + tf.gather(begins, row), first + tf.gather(ends, row)
            )
            places = tf.ensure_shape(places, [piece_size])
            return self._examples.gather(self._order(epoch, places))

        # One element per piece, not per step: a flat_map over the pieces of
        # each step costs more than reading a small batch. They are read in
        # parallel, and stay in order.
        dataset = tf.data.Dataset.counter().map(
            read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return endless(dataset).prefetch(tf.data.AUTOTUNE)

    def _bounds(self, **cut: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Begin and end of a full batch's pieces, then of the last batch's."""
        pieces = np.arange(cut["micro"] * len(cut["replicas"]))
        rows = [
            piece_bounds(size, pieces, **cut)
            for size in (self.batch_size, self.last_size)
        ]
        begins, ends = np.concatenate(rows, axis=1)
        # On the host, where the input pipeline reads them.
        with tf.device("CPU:0"):
            return tf.constant(begins, tf.int64), tf.constant(ends, tf.int64)

    def _order(self, epoch: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """The examples at some positions of an epoch."""
        if not self._shuffle:
            return places
        # index_shuffle takes a seed of two numbers here: run and epoch.
        key = tf.constant(self._seed & 0xFFFFFFFF, tf.uint32)
        seed = tf.stack([key, tf.cast(epoch, tf.uint32)])
        last = tf.constant(self._examples.size - 1, tf.int64)
        # The op refuses an empty vector, and a piece may be empty: one more
        # index goes in, and comes out below.
        padded = tf.pad(places, [[0, 1]])
        order = tf.random.experimental.index_shuffle(padded, seed, last)
        return order[:-1]
