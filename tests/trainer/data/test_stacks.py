"""Stacks hold the batches that a run would read one by one."""

import itertools
import re

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from tests.sets import ordinary
from trainer.data import (
    ArrayExamples,
    Batches,
    DatasetBatches,
    IndexedBatches,
)
from trainer.data.skip_batches import SteppingOver
from trainer.data.stacks import (
    is_like_pieces,
)

WANTED = 40


def from_arrays(size, batch_size, transform=None, **options):
    numbers = np.arange(size)
    examples = ArrayExamples((numbers, -numbers), transform=transform)
    return IndexedBatches(examples, batch_size=batch_size, **options)


def less_its_mean(x, y):
    """What comes of an example depends on the rest of its batch."""
    x = tf.cast(x, tf.float32)
    return x - tf.reduce_mean(x), y


def static_dataset():
    numbers = tf.data.Dataset.range(50)
    pairs = tf.data.Dataset.zip((numbers, numbers))
    return pairs.batch(4, drop_remainder=True)


SOURCES = {
    "even": lambda: from_arrays(24, 4),
    "shuffled": lambda: from_arrays(24, 4, shuffle=True, seed=3),
    "short_last_batch": lambda: from_arrays(23, 4, shuffle=True),
    "without_the_short_one": lambda: from_arrays(23, 4, drop_remainder=True),
    "only_a_short_batch": lambda: from_arrays(3, 4, shuffle=True),
    "one_batch": lambda: from_arrays(4, 4, shuffle=True),
    "several_stacks": lambda: from_arrays(4 * 70 + 1, 4, shuffle=True),
    "transformed": lambda: from_arrays(23, 4, less_its_mean, shuffle=True),
    "dataset": lambda: DatasetBatches(static_dataset, batch_size=4),
}
SKIPPED = ([0], [2, 3], [6, 13, 14, 37])


def one_by_one(batches, start, count=WANTED):
    pieces = batches.pieces(
        start=start, replicas=range(1), num_replicas=1, micro=1
    )
    return list(pieces.take(count).as_numpy_iterator())


def unstacked(batches, start, **options):
    columns = batches.columns()
    for stack in batches.stacks(start=start, **options).as_numpy_iterator():
        for i in range(stack.begin, stack.end):
            if columns is None:
                yield tuple(part[i] for part in stack.batches)
            else:
                rows = stack.batches[i]
                yield tuple(column.numpy()[rows] for column in columns)


@pytest.mark.parametrize(
    "source",
    ordinary(
        SOURCES,
        [
            "short_last_batch",
            "only_a_short_batch",
            "several_stacks",
            "transformed",
            "dataset",
        ],
    ),
)
def test_the_batches_are_those_of_single_steps(source):
    batches = SOURCES[source]()
    everything = one_by_one(batches, 0, WANTED + 67)
    for start in (0, 5, 67):
        found = list(itertools.islice(unstacked(batches, start), WANTED))
        np.testing.assert_equal(found, everything[start : start + WANTED])
    stop = list(unstacked(batches, 11, stop=7))
    np.testing.assert_equal(stop, everything[11:18])
    assert list(unstacked(batches, 11, stop=0)) == []


@pytest.mark.parametrize(
    ("source", "skipped"),
    ordinary(
        itertools.product(("short_last_batch", "shuffled", "dataset"), SKIPPED),
        [("short_last_batch", SKIPPED[2]), ("dataset", SKIPPED[1])],
    ),
)
def test_batches_are_left_out(source, skipped):
    over = SteppingOver(SOURCES[source](), skipped)
    everything = one_by_one(over, 0, WANTED + 3)
    for start in (0, 3):
        found = list(itertools.islice(unstacked(over, start), WANTED))
        np.testing.assert_equal(found, everything[start : start + WANTED])


def sparse(size):
    rows = scipy.sparse.eye(size).tocsr()
    return IndexedBatches(ArrayExamples((rows, np.arange(size))), batch_size=4)


class Numbered(Batches):
    """Batches of somebody else, whose shape is known."""

    batch_size, steps_per_epoch = 4, None

    def pieces(self, *, start, every=1, **cut):
        counter = tf.data.Dataset.counter(start, every)
        return counter.map(lambda n: (tf.fill([4], n), tf.fill([4], -n)))


def test_other_sources_of_a_known_shape():
    found = list(itertools.islice(unstacked(Numbered(), 7), 60))
    assert [int(x[0]) for x, _ in found] == list(range(7, 67))


class Centred(ArrayExamples):
    """What comes of an example depends on the rest of its batch."""

    def gather(self, numbers):
        x, y = super().gather(numbers)
        return less_its_mean(x, y)


class Tenfold(IndexedBatches):
    """Does more with what is read."""

    def pieces(self, **cut):
        return super().pieces(**cut).map(lambda x, y: (x * 10, y))


@pytest.mark.parametrize(
    "batches",
    [
        IndexedBatches(
            Centred((np.arange(24), np.arange(24))), batch_size=4, shuffle=True
        ),
        Tenfold(ArrayExamples((np.arange(24), np.arange(24))), batch_size=4),
    ],
    ids=["examples", "batches"],
)
def test_subclasses_are_read_in_their_own_way(batches):
    found = list(itertools.islice(unstacked(batches, 3), WANTED))
    np.testing.assert_equal(found, one_by_one(batches, 3))
    assert is_like_pieces(batches, 3)


def dataset_of(make):
    return DatasetBatches(make, batch_size=None)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        (
            lambda: dataset_of(lambda: tf.data.Dataset.range(9).batch(4)),
            r"batches of the shape \(None,\)",
        ),
        (
            lambda: from_arrays(8, 4, lambda x, y: (tf.as_string(x), y)),
            "a tensor of string",
        ),
        (
            lambda: IndexedBatches(
                ArrayExamples((scipy.sparse.eye(8).tocsr(), np.arange(8))),
                batch_size=4,
            ),
            "a SparseTensorSpec",
        ),
        (
            lambda: from_arrays(
                8, 4, lambda x, y: (tf.RaggedTensor.from_tensor(x[:, None]), y)
            ),
            "a RaggedTensorSpec",
        ),
    ],
    ids=["dynamic", "strings", "sparse", "ragged"],
)
def test_why_not(batches, reason):

    assert re.search(reason, batches().why_not_stacked())
