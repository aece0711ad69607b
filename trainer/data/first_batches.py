"""The first batches of a source, again and again: for `overfit_batches`."""

from typing import Any

import tensorflow as tf
from absl import logging

from trainer.data.batches import Batches
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import Examples
from trainer.data.indexed_batches import IndexedBatches
from trainer.errors import UserError


def first_batches(batches: Batches, count: int) -> Batches:
    """The first global batches of a source, in their order, without end.

    Args:
        batches: the training data.
        count: how many batches make an epoch from now on.

    Returns:
        Batches that are not shuffled. Those of examples with random access
        begin with the first example, whatever the shuffle of the source; of
        any other source they are the first ones that it yields, which stay
        in memory.

    Raises:
        UserError: the source has fewer.
    """
    batches.learn_length(count)
    length = batches.steps_per_epoch
    if length is not None and count > length:
        raise UserError(
            f"overfit_batches = {count}, but the training data has {length} "
            f"batches. Choose at most {length}."
        )
    size = batches.batch_size
    examples = ""
    if size is not None:
        found = count * size
        if count == length:
            found += (batches.last_size or size) - size
        examples = f" ({found:,} examples)"
    logging.warning(
        "overfit_batches = %d: training and evaluation both use the first %d%s "
        "batches of the training data%s, in the same order each time.",
        count,
        count,
        "" if length is None else f" of {length:,}",
        examples,
    )
    if type(batches) is IndexedBatches:
        full = count - (count == length)
        return IndexedBatches(
            FirstExamples(
                batches.examples,
                full * batches.batch_size + (count - full) * batches.last_size,
            ),
            batch_size=batches.batch_size,
        )
    # Read once: the dataset might be shuffled anew each time.
    kept = batches.whole(0).take(count).cache()
    for _ in kept:
        pass
    return DatasetBatches(
        lambda: kept, batch_size=None, name="the training data"
    )


class FirstExamples(Examples):
    """The first examples of others, which are not shuffled.

    Args:
        examples: the others.
        size: how many.
    """

    shuffle = False

    def __init__(self, examples: Examples, size: int) -> None:
        self._examples = examples
        self.size = size

    def gather(self, numbers: tf.Tensor) -> Any:
        """See `Examples.gather`."""
        return self._examples.gather(numbers)

    def gather_batches(self, numbers: tf.Tensor, spec: Any) -> Any:
        """See `Examples.gather_batches`."""
        return self._examples.gather_batches(numbers, spec)

    def columns(self) -> Any:
        """See `Examples.columns`."""
        return self._examples.columns()
