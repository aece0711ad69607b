"""Batches from any `tf.data.Dataset`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.data.batches import (
    WHOLE,
    Batches,
    Cut,
    NextRange,
    Resume,
    count_rows,
    counted_part,
    endless,
    not_per_example,
    parts_of,
    position_of,
    take_rows,
)
from trainer.errors import UserError, at_run_time
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
        batch_size: the required size of a full batch; without one it is that
            of the first.
        name: the name of the data in error messages.
        drop_remainder: whether smaller batches are refused.

    A dataset of unknown length, such as one made by `filter` or
    `from_generator`, is read to count its batches, but no further than the run
    will go. A longer one has no epochs, because it may never end.

    Raises:
        UserError: it yields no batches, or batches of another size.
    """

    resume = Resume.SKIP
    can_skip = True

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
        size = _static_batch_size(dataset, name)
        if size is None and drop_remainder:
            raise UserError(
                f"{name} may yield batches of different sizes, and this "
                "strategy compiles its step for one. Batch it with dataset."
                "batch(batch_size, drop_remainder=True)."
            )
        # A wrong size must show now, and not in the middle of a run.
        if size is None:
            sizes = [int(count_rows(one)) for one in dataset.take(2)]
            if not sizes:
                raise UserError(f"{name} yields no batches.")
            # The only batch of an epoch may be short.
            is_short = len(sizes) == 1 and sizes[0] < (batch_size or 0)
            size = batch_size if is_short else sizes[0]
        if batch_size and size != batch_size:
            raise UserError(
                f"{name} yields batches of {size} examples, but batch_size = "
                f"{batch_size}. Make them equal."
            )
        self.batch_size = size
        self._make_dataset = make_dataset
        self._name = name
        self._length: int | None = None
        self._counted_to = 0
        cardinality = int(dataset.cardinality())
        if cardinality != tf.data.UNKNOWN_CARDINALITY:
            self._set_length(cardinality)

    @property
    def steps_per_epoch(self) -> int | None:  # type: ignore[override]
        """See `Batches`; counted on first use if it is unknown."""
        if not self._counted_to:
            self.learn_length()
        return self._length

    def learn_length(self, at_most: int | None = None) -> None:
        """See `Batches.learn_length`; reads only datasets of unknown length."""
        at_most = min(at_most or MOST_COUNTED, MOST_COUNTED)
        if at_most <= self._counted_to:
            return
        logging.warning(
            "%s has an unknown number of batches: reading up to %d of them "
            "to count. To avoid this, pass steps_per_epoch to fit, or set its "
            "length with tf.data.experimental.assert_cardinality.",
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

    def check_cut(self, first: Callable[[], Any]) -> None:
        """See `Batches.check_cut`."""
        odd = not_per_example(self.element_spec) or not_per_example(first())
        if odd is not None:
            raise UserError(_odd_part(odd))

    def _set_length(self, count: int) -> None:
        """Keeps a length that is known; a negative one is endless."""
        if count == 0:
            raise UserError(f"{self._name} yields no batches.")
        self._length = count if count > 0 else None
        self._counted_to = MOST_COUNTED

    def read(self, *, start: Any, cut: Cut = WHOLE) -> tf.data.Dataset:
        """See `Batches.read`."""
        # Repeat first: the position may lie several epochs ahead.
        first = position_of(start, self.skipped)
        dataset = self._make_dataset().repeat().skip(first)
        if self.skipped:
            dataset = (
                dataset.enumerate(first)
                .filter(lambda n, _: tf.reduce_all(n != self.skipped))
                .map(lambda _, batch: batch)
            )
        return cut_batches(dataset, cut)

    def read_named(
        self, next_range: NextRange, *, start: int, cut: Cut
    ) -> tf.data.Dataset:
        """See `Batches.read_named`; skips all other batches.

        There is no way back to a range that was named for a worker that died:
        those that follow are taken in its place.
        """

        def place(named: Any, element: Any) -> Any:
            number, batch = element

            def follow() -> Any:
                first, count = next_range(number)
                first = tf.maximum(first, number)
                return first, first + count

            first, end = tf.cond(number < named[1], lambda: named, follow)
            return (first, end), (number >= first, batch)

        def stream(first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
            batches = self._make_dataset().repeat().skip(start + first)
            return (
                batches.enumerate(first)
                .scan((first, first + count), plain(place))
                .filter(lambda is_named, _: is_named)
                .map(lambda _, batch: batch)
            )

        ranges = tf.data.Dataset.range(1).map(plain(next_range))
        return cut_batches(ranges.flat_map(plain(stream)), cut)


def cut_batches(dataset: tf.data.Dataset, cut: Cut) -> tf.data.Dataset:
    """Cuts global batches into those of replicas."""

    def replica_batches(*batch: Any) -> tf.data.Dataset:
        element = batch[0] if len(batch) == 1 else batch
        numbers = tf.range(cut.reads, dtype=tf.int64)
        rows = count_rows(element)
        # Known of the first batch only, where shapes are not static.
        checks = [
            tf.debugging.assert_equal(
                count_rows(part), rows, at_run_time(_odd_part(name))
            )
            for name, part in parts_of(element).items()
            if part.shape.rank != 0 and part.shape[0] is None
        ]
        with tf.control_dependencies(checks):
            bounds = cut.bounds(tf.identity(rows), numbers)
        return tf.data.Dataset.from_tensor_slices(bounds).map(
            lambda begin, end: take_rows(element, begin, end)
        )

    # A batch that is not cut keeps its static shape, and needs no nested
    # dataset.
    if not cut.is_whole:
        odd = not_per_example(dataset.element_spec)
        if odd is not None:
            raise UserError(_odd_part(odd))
        dataset = dataset.flat_map(plain(replica_batches))
    return endless(dataset).prefetch(tf.data.AUTOTUNE)


def _static_batch_size(dataset: tf.data.Dataset, name: str) -> int | None:
    counted = counted_part(dataset.element_spec)
    if counted.shape.rank == 0:
        raise UserError(
            f"{name} yields single examples. Batch it with "
            "dataset.batch(batch_size)."
        )
    size = counted.shape[0] if counted.shape.rank else None
    return None if size is None else int(size)


def _odd_part(name: str) -> str:
    """Returns the error message for a part that is not per example."""
    return (
        f"In the data, {name} does not have one row for each example, as "
        "targets do, so it cannot be divided among replicas and micro-batches. "
        "Train on one device without accumulation_steps, or give each part all "
        "of it: keep it in the model, or add it in "
        "ArrayExamples(transform=...)."
    )
