"""Stacks hold the batches that a run would read one by one."""

import itertools
import re

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from tests.sets import ordinary
from trainer import (
    ArrayExamples,
    DatasetBatches,
    Examples,
    IndexedBatches,
)

WANTED = 40


def from_arrays(size, batch_size=4, kind=ArrayExamples, **options):
    numbers = np.arange(size)
    transform = options.pop("transform", None)
    examples = kind((numbers, -numbers), transform=transform)
    return IndexedBatches(examples, batch_size=batch_size, **options)


def less_its_mean(x, y):
    """What comes of an example depends on the rest of its batch."""
    x = tf.cast(x, tf.float32)
    return x - tf.reduce_mean(x), y


class Centred(ArrayExamples):
    def gather(self, numbers):
        return less_its_mean(*super().gather(numbers))


class Conditional(Examples):
    """Reads with a condition over a tensor."""

    size, shuffle = 23, False

    def gather(self, numbers):
        x = tf.cast(numbers, tf.float32)
        if tf.reduce_sum(x) > 10.0:
            x = -x
        return x, x


SOURCES = {
    "even": lambda: from_arrays(24),
    "shuffled": lambda: from_arrays(24, shuffle=True, seed=3),
    "short_last_batch": lambda: from_arrays(23, shuffle=True),
    "without_the_short_one": lambda: from_arrays(23, drop_remainder=True),
    "only_a_short_batch": lambda: from_arrays(3, shuffle=True),
    "one_batch": lambda: from_arrays(4, shuffle=True),
    "several_stacks": lambda: from_arrays(4 * 70 + 1, shuffle=True),
    "transformed": lambda: from_arrays(
        23, transform=less_its_mean, shuffle=True
    ),
    "own_gather": lambda: from_arrays(24, kind=Centred, shuffle=True),
    "own_examples": lambda: IndexedBatches(Conditional(), batch_size=4),
}
CHOSEN = ("short_last_batch", "several_stacks", "transformed")
SKIPPED = ([0], [2, 3], [6, 13, 14, 37])


def one_by_one(batches, start, count=WANTED):
    return list(batches.read(start=start).take(count).as_numpy_iterator())


def unstacked(batches, start):
    dataset, columns = batches.stacks(start=start)
    for stack in dataset.as_numpy_iterator():
        for i in range(stack.count):
            if columns is None:
                yield tuple(part[i] for part in stack.batches)
            else:
                rows = stack.batches[i]
                yield tuple(column.numpy()[rows] for column in columns)


@pytest.mark.parametrize(
    ("source", "skipped"),
    ordinary(
        [
            *itertools.product(SOURCES, [[]]),
            *itertools.product(("short_last_batch", "shuffled"), SKIPPED),
        ],
        [
            *itertools.product(CHOSEN, [[]]),
            ("own_gather", []),
            ("short_last_batch", SKIPPED[2]),
        ],
    ),
)
def test_the_batches_are_those_of_single_steps(source, skipped):
    batches = SOURCES[source]()
    if skipped:
        batches = batches.without(skipped)
    everything = one_by_one(batches, 0, WANTED + 67)
    for start in (0, 5, 67):
        found = list(itertools.islice(unstacked(batches, start), WANTED))
        np.testing.assert_equal(found, everything[start : start + WANTED])


def test_research_code_may_have_conditions_over_tensors():
    batches = SOURCES["own_examples"]()
    found = [x.tolist() for x, _ in itertools.islice(unstacked(batches, 0), 2)]
    assert found == [[0, 1, 2, 3], [-4, -5, -6, -7]]


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
            "read in its order: give arrays",
        ),
        (
            lambda: from_arrays(8, transform=lambda x, y: (tf.as_string(x), y)),
            "a tensor of string",
        ),
        (
            lambda: IndexedBatches(ArrayExamples(SPARSE), batch_size=4),
            "a SparseTensorSpec",
        ),
        (
            lambda: from_arrays(
                8,
                transform=lambda x, y: (
                    tf.RaggedTensor.from_tensor(x[:, None]),
                    y,
                ),
            ),
            "a RaggedTensorSpec",
        ),
        (
            lambda: Tenfold(ArrayExamples(SPARSE[1:]), batch_size=4),
            "Tenfold reads its batches in its own way",
        ),
    ],
    ids=["dataset", "strings", "sparse", "ragged", "subclass"],
)
def test_why_not(batches, reason):
    assert re.search(reason, batches().why_not_stacked())
