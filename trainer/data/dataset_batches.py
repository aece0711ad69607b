"""Batches from any `tf.data.Dataset`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.data.batches import Batches, Resume, endless
from trainer.data.rows import count_rows, take_rows
from trainer.data.split import piece_bounds
from trainer.errors import UserError


class DatasetBatches(Batches):
    """Global batches that a `tf.data.Dataset` yields, reached with `skip`.

    The dataset is made anew for each iterator. It must give the same
    batches each time, so seed its shuffles (or rely on the run's seed, which
    `tf.random.set_seed` makes the default of every op).

    Args:
        make_dataset: returns the dataset of global batches, one epoch long
            or endless.
        batch_size: what each full batch must hold; `None` does not check.
        name: what to call the data in an error message.
        drop_remainder: leave out batches of fewer examples. To know how many
            are left, it reads one epoch, unless the dataset was batched with
            `drop_remainder=True`.

    Raises:
        UserError: it yields no batches, or not of `batch_size` examples.
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
        static_size = _static_batch_size(dataset, name)
        if batch_size and not static_size:
            _check_first_batch(dataset, batch_size, name)
        self.batch_size = static_size or batch_size
        if batch_size and self.batch_size != batch_size:
            raise UserError(
                f"{name} yields batches of {self.batch_size} examples, but "
                f"batch_size = {batch_size}. Make them equal."
            )
        self._make_dataset = make_dataset
        if drop_remainder and batch_size and not static_size:
            self._make_dataset = lambda: _full(make_dataset(), batch_size)
        self.steps_per_epoch = _count_batches(self._make_dataset())
        if self.steps_per_epoch == 0:
            kind = "full batches" if drop_remainder else "batches"
            raise UserError(f"{name} yields no {kind}.")

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

        dataset = self._make_dataset().repeat().skip(start)
        if every > 1:
            dataset = dataset.shard(every, 0)
        if micro * num_replicas > 1:
            dataset = dataset.flat_map(cut)
        return endless(dataset).prefetch(tf.data.AUTOTUNE)


def _static_batch_size(dataset: tf.data.Dataset, name: str) -> int | None:
    leaves = tf.nest.flatten(dataset.element_spec)
    if any(leaf.shape.rank == 0 for leaf in leaves):
        raise UserError(
            f"{name} yields single examples: batch it with "
            "dataset.batch(batch_size)."
        )
    size = leaves[0].shape[0] if leaves[0].shape.rank else None
    return None if size is None else int(size)


def _check_first_batch(
    dataset: tf.data.Dataset, batch_size: int, name: str
) -> None:
    """Checks that batches are full, by reading the first one or two."""
    sizes = (int(count_rows(element)) for element in dataset)
    first = next(sizes, None)
    # An epoch of one batch may be a short one.
    if first is None or first == batch_size:
        return
    if first > batch_size or next(sizes, None) is not None:
        raise UserError(
            f"{name} yields batches of {first} examples, but batch_size = "
            f"{batch_size}. Make them equal."
        )


def _full(dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Only the batches that hold as many examples as a full one."""

    def is_full(*batch: Any) -> tf.Tensor:
        return count_rows(batch) == batch_size

    endless_source = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    full = dataset.filter(is_full)
    return endless(full) if endless_source else full


def _count_batches(dataset: tf.data.Dataset) -> int | None:
    """Batches in one pass, counted by reading where the dataset cannot say."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.experimental.INFINITE_CARDINALITY:
        return None
    if cardinality == tf.data.experimental.UNKNOWN_CARDINALITY:
        return int(dataset.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1))
    return cardinality
