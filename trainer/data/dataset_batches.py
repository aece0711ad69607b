"""Batches from any `tf.data.Dataset`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.data.batches import Batches, Resume, endless
from trainer.data.rows import count_rows, take_rows
from trainer.data.sharding import piece_bounds
from trainer.errors import UserError
from trainer.runtime.graph import plain

# A dataset of unknown length is read at most this far to count its batches.
MOST_COUNTED = 100_000


class DatasetBatches(Batches):
    """Global batches that a `tf.data.Dataset` yields, reached with `skip`.

    The dataset is created again for each iterator, and must yield the same
    batches each time. Random operations without a seed, such as a shuffle,
    start from the run's seed each time.

    Args:
        make_dataset: returns the dataset of global batches, one epoch long
            or endless.
        batch_size: the required size of a full batch; `None` does not check.
        name: the name of the data in error messages.
        drop_remainder: leave out smaller batches. To count the full ones, one
            epoch is read, unless the dataset was batched with
            `drop_remainder=True`.

    A dataset of unknown length, such as one made by `filter` or
    `from_generator`, is read to count its batches, but no further than the run
    will go. A longer one has no epochs, because it may never end.

    Raises:
        UserError: it yields no batches, or batches of another size.
    """

    resume = Resume.SKIP

    def __init__(
        self,
        make_dataset: Callable[[], tf.data.Dataset],
        *,
        batch_size: int | None,
        name: str = "data",
        drop_remainder: bool = False,
    ) -> None:
        dataset = make_dataset()
        # Known without reading if the dataset was batched with
        # `drop_remainder=True`.
        static_size = _static_batch_size(dataset, name)
        # A wrong size must show now, and not in the middle of a run.
        if batch_size and not static_size:
            first = _first_size(dataset, batch_size, name)
            if drop_remainder and first < batch_size:
                raise UserError(f"{name} yields no full batches.")
        self.batch_size = static_size or batch_size
        if batch_size and self.batch_size != batch_size:
            raise UserError(
                f"{name} yields batches of {self.batch_size} examples, but "
                f"batch_size = {batch_size}. Make them equal."
            )
        self._make_dataset = make_dataset
        if drop_remainder and batch_size and not static_size:
            self._make_dataset = lambda: _full(make_dataset(), batch_size)
        self._name = name
        self._kind = "full batches" if drop_remainder else "batches"
        self._length: int | None = None
        self._counted_to = 0
        cardinality = int(self._make_dataset().cardinality())
        self._is_unknown = cardinality == tf.data.UNKNOWN_CARDINALITY
        if cardinality >= 0:
            self._set_length(cardinality)

    @property
    def steps_per_epoch(self) -> int | None:  # type: ignore[override]
        """See `Batches`; counted on first use if it is unknown."""
        if not self._counted_to:
            self.learn_length(MOST_COUNTED)
        return self._length

    def learn_length(self, at_most: int) -> None:
        """See `Batches.learn_length`; reads only datasets of unknown length."""
        at_most = min(at_most, MOST_COUNTED)
        if not self._is_unknown or at_most <= self._counted_to:
            return
        logging.warning(
            "%s has an unknown number of batches: reading up to %d of them "
            "to count. To avoid this, set its length with "
            "tf.data.experimental.assert_cardinality.",
            self._name,
            at_most,
        )
        # One more than the limit tells a dataset of that length from a longer
        # one.
        first = self._make_dataset().take(at_most + 1)
        one = tf.constant(1, tf.int64)
        count = int(first.reduce(one - 1, lambda n, _: n + one))
        self._counted_to = at_most
        if count <= at_most:
            self._set_length(count)

    def _set_length(self, count: int) -> None:
        if count == 0:
            raise UserError(f"{self._name} yields no {self._kind}.")
        self._length, self._is_unknown = count, False

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

        def cut(*batch: Any) -> tf.data.Dataset:
            element = batch[0] if len(batch) == 1 else batch
            size = count_rows(element)
            bounds = piece_bounds(
                size,
                tf.range(micro * len(replicas), dtype=tf.int64),
                micro=micro,
                replicas=replicas,
                num_replicas=num_replicas,
            )
            return tf.data.Dataset.from_tensor_slices(bounds).map(
                lambda begin, end: take_rows(element, begin, end)
            )

        # Repeat first: the position may lie several epochs ahead.
        dataset = self._make_dataset().repeat().skip(start)
        if every > 1:
            # Counted from `start`, up to which has been skipped.
            dataset = dataset.shard(every, 0)
        # A batch that is not cut keeps its static shape, and needs no nested
        # dataset.
        if micro * num_replicas > 1:
            dataset = dataset.flat_map(plain(cut))
        return endless(dataset).prefetch(tf.data.AUTOTUNE)


def _static_batch_size(dataset: tf.data.Dataset, name: str) -> int | None:
    leaves = tf.nest.flatten(dataset.element_spec)
    if any(leaf.shape.rank == 0 for leaf in leaves):
        raise UserError(
            f"{name} yields single examples. Batch it with "
            "dataset.batch(batch_size)."
        )
    size = leaves[0].shape[0] if leaves[0].shape.rank else None
    return None if size is None else int(size)


def _first_size(dataset: tf.data.Dataset, batch_size: int, name: str) -> int:
    """Returns the size of the first batch.

    Raises:
        UserError: there is no batch, or it has another size.
    """
    sizes = (int(count_rows(element)) for element in dataset)
    first = next(sizes, None)
    if first is None:
        raise UserError(f"{name} yields no batches.")
    # The only batch of an epoch may be short; the first of several may not.
    if first > batch_size or (
        first < batch_size and next(sizes, None) is not None
    ):
        raise UserError(
            f"{name} yields batches of {first} examples, but batch_size = "
            f"{batch_size}. Make them equal."
        )
    return first


def _full(dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns the dataset without its short batches."""

    def is_full(*batch: Any) -> tf.Tensor:
        return count_rows(batch) == batch_size

    # `filter` makes the cardinality unknown, and an endless source must not be
    # counted.
    endless_source = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    full = dataset.filter(plain(is_full))
    return endless(full) if endless_source else full
