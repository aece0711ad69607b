"""Batches over examples with random access: any step in O(1)."""

from typing import Any

import tensorflow as tf

from trainer.data.batches import Batches, Resume, endless
from trainer.data.examples import Examples
from trainer.data.split import even_piece, piece_bounds
from trainer.errors import UserError


class IndexedBatches(Batches):
    """Global batches of examples, in a seeded global shuffle.

    Epoch e visits the examples in the order of a pseudo-random permutation
    keyed by (seed, e), which `tf.random.experimental.index_shuffle` evaluates
    one index at a time: step n needs nothing that came before it. Only the
    examples that this input pipeline's replicas need are read.

    Args:
        examples: what to read from.
        batch_size: examples in a global batch.
        seed: chooses the permutations.
        shuffle: whether to permute at all.
        drop_remainder: leave out an epoch's last, short batch.

    Raises:
        UserError: the batch size is not positive, or no batch is left.
    """

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
        self._every_batch_full = rest == 0 or drop_remainder

    def pieces(
        self, *, start: int, replicas: range, num_replicas: int, micro: int
    ) -> tf.data.Dataset:
        """See `Batches.pieces`."""
        cut = {
            "micro": micro,
            "replicas": replicas,
            "num_replicas": num_replicas,
        }

        def cut_step(step: tf.Tensor) -> tf.data.Dataset:
            epoch = step // self.steps_per_epoch
            first = step % self.steps_per_epoch * self.batch_size
            size = tf.minimum(
                tf.constant(self.batch_size, tf.int64),
                self._examples.size - first,
            )
            begin, end = piece_bounds(size, **cut)
            epochs = tf.fill(tf.shape(begin), epoch)
            return tf.data.Dataset.from_tensor_slices(
                (epochs, first + begin, first + end)
            )

        piece_size = (
            even_piece(self.batch_size, micro=micro, num_replicas=num_replicas)
            if self._every_batch_full
            else None
        )

        def read(epoch: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> Any:
            numbers = tf.range(begin, end, dtype=tf.int64)
            numbers = tf.ensure_shape(numbers, [piece_size])
            return self._examples.gather(self._order(epoch, numbers))

        dataset = tf.data.Dataset.counter(start).flat_map(cut_step)
        dataset = dataset.map(
            read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return endless(dataset).prefetch(tf.data.AUTOTUNE)

    def _order(self, epoch: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Which examples stand at these places of an epoch."""
        if not self._shuffle:
            return numbers
        key = (self._seed ^ self._seed >> 32) & 0xFFFFFFFF
        seed = tf.stack(
            [tf.constant(key, tf.uint32), tf.cast(epoch, tf.uint32)]
        )
        last = tf.constant(self._examples.size - 1, tf.int64)
        # The op refuses an empty vector, so one number more goes in.
        padded = tf.pad(numbers, [[0, 1]])
        order = tf.random.experimental.index_shuffle(padded, seed, last)
        return order[:-1]
