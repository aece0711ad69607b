"""Sequences with gaps, against lists of batches in Python."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.sets import long, one_in
from trainer.data import ArrayExamples, DatasetBatches, IndexedBatches
from trainer.data.skip_batches import SteppingOver

SIZE, BATCH = 22, 4  # An epoch's sixth batch holds two examples.
NUMBERS = np.arange(SIZE)
TAKEN = 14
SKIPPED = ([0], [3], [2, 3], [13], [0, 1, 5, 9], [40], [])


def indexed(shuffle):
    return IndexedBatches(
        ArrayExamples(NUMBERS), batch_size=BATCH, shuffle=shuffle
    )


SOURCES = {
    "seek": lambda: indexed(False),
    "shuffled": lambda: indexed(True),
    "skip": lambda: DatasetBatches(
        lambda: tf.data.Dataset.from_tensor_slices(NUMBERS).batch(BATCH),
        batch_size=BATCH,
    ),
}
ALL = {"replicas": range(1), "num_replicas": 1, "micro": 1}


def read(batches, count, *, start=0, **cut):
    pieces = batches.pieces(start=start, **{**ALL, **cut})
    return [tuple(p) for p in pieces.take(count).as_numpy_iterator()]


def left(batches, skipped, *, start=0, every=1):
    """What remains of a list of batches."""
    found = read(batches, 60)
    kept = [b for i, b in enumerate(found) if i not in skipped]
    return list(itertools.islice(kept, start, None, every))[:TAKEN]


@pytest.mark.parametrize("source", [long("seek"), "shuffled", "skip"])
@pytest.mark.parametrize("skipped", one_in(2, SKIPPED))
@pytest.mark.parametrize(("start", "every"), [(0, 1), long(3, 1), (1, 3)])
def test_the_batches_that_are_left(source, skipped, start, every):
    batches = SOURCES[source]()
    over = SteppingOver(batches, skipped)
    expected = left(batches, skipped, start=start, every=every)
    assert len(expected) == TAKEN
    assert read(over, TAKEN, start=start, every=every) == expected
