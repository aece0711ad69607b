"""Batches over examples with random access: any step in O(1)."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.data.batches import Batches, Resume, endless
from trainer.data.examples import Examples
from trainer.data.sharding import even_piece, piece_bounds
from trainer.errors import UserError
from trainer.values.annotations import Positive
from trainer.values.configurable import checked


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

    batch_size: int
    steps_per_epoch: int
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
            return self._examples.gather(self._order(epoch, positions))

        # Count pieces, not steps: a nested dataset for each step (flat_map)
        # costs more than reading a small batch.
        dataset = tf.data.Dataset.counter().map(
            # Deterministic, because the order is part of the run.
            read,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return endless(dataset).prefetch(tf.data.AUTOTUNE)

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
        last = tf.constant(self._examples.size - 1, tf.int64)
        # The operation rejects an empty vector, so add one index.
        padded = tf.pad(positions, [[0, 1]])
        order = tf.random.experimental.index_shuffle(padded, seed, last)
        return order[:-1]
