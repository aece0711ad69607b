"""Stacks hold the batches that a run would read one by one."""

import itertools
import re

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from trainer import ArrayExamples, DatasetBatches, IndexedBatches
from trainer.data.stacks import SIZE, StackReader

WANTED = 140


def from_arrays(size, batch_size=4, *, transform=None, **options):
    numbers = np.arange(size)
    examples = ArrayExamples((numbers, -numbers), transform=transform)
    return IndexedBatches(examples, batch_size=batch_size, **options)


def less_its_mean(x, y):
    """What comes of an example depends on the rest of its batch."""
    x = tf.cast(x, tf.float32)
    return x - tf.reduce_mean(x), y


SOURCES = {
    "even": lambda: from_arrays(24),
    "shuffled": lambda: from_arrays(24, shuffle=True, seed=3),
    "short_last_batch": lambda: from_arrays(23, shuffle=True),
    "without_the_short_one": lambda: from_arrays(23, drop_remainder=True),
    "only_a_short_batch": lambda: from_arrays(3, shuffle=True),
    "one_batch": lambda: from_arrays(4, shuffle=True),
    "several_stacks": lambda: from_arrays(4 * 170 + 1, shuffle=True),
}
SKIPPED = ([0], [2, 3], [6, 13, 14, 37])


def one_by_one(batches, start, count=WANTED):
    return list(batches.read(start=start).take(count).as_numpy_iterator())


def unstacked(batches, start):
    """The batches that stacks hold, of as many as are left."""
    reader, left = StackReader(batches, start=start), WANTED
    while left:
        rows, count = reader.take(left)
        assert len(rows.numbers) == SIZE
        left -= count
        for i in range(count):
            yield tuple(part.numpy() for part in rows.batch(i))


@pytest.mark.parametrize(
    ("source", "skipped"),
    [
        *itertools.product(SOURCES, [[]]),
        *itertools.product(("short_last_batch", "shuffled"), SKIPPED),
    ],
)
def test_the_batches_are_those_of_single_steps(source, skipped):
    batches = SOURCES[source]()
    if skipped:
        batches = batches.without(skipped)
    everything = one_by_one(batches, 0, WANTED + 67)
    for start in (0, 5, 67):
        found = list(unstacked(batches, start))
        np.testing.assert_equal(found, everything[start : start + WANTED])


class Tenfold(IndexedBatches):
    """Does more with what is read."""

    def read(self, **options):
        return super().read(**options).map(lambda x, y: (x * 10, y))


SPARSE = scipy.sparse.eye(8).tocsr(), np.arange(8)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        (
            lambda: DatasetBatches(
                lambda: tf.data.Dataset.range(9).batch(4), batch_size=None
            ),
            "read in its order",
        ),
        (
            lambda: IndexedBatches(
                ArrayExamples((np.array(["a"] * 8), np.arange(8))), batch_size=4
            ),
            "a tensor of string",
        ),
        (
            lambda: IndexedBatches(ArrayExamples(SPARSE), batch_size=4),
            "not plain arrays",
        ),
        (
            lambda: from_arrays(8, transform=lambda x, y: (x + 1, y)),
            "or have a transform",
        ),
        (
            lambda: IndexedBatches(
                ArrayExamples(np.zeros((1 << 20, 1025), "uint8")), batch_size=4
            ),
            "1,074,790,400 bytes",
        ),
        (
            lambda: Tenfold(ArrayExamples(SPARSE[1:]), batch_size=4),
            "Tenfold reads its batches in its own way",
        ),
    ],
    ids=["dataset", "strings", "sparse", "transform", "large", "subclass"],
)
def test_why_not(batches, reason):
    assert re.search(reason, batches().why_not_stacked())
