"""Stacks hold the batches that a run would read one by one."""

import itertools
import re

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from tests.sets import one_in, ordinary
from trainer.data import (
    ArrayExamples,
    Batches,
    DatasetBatches,
    IndexedBatches,
    stacks,
)
from trainer.data.skip_batches import SteppingOver
from trainer.data.stacks import (
    MOST_BATCHES,
    is_like_pieces,
    row_stack_size,
    stack_size,
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


def test_all_stacks_have_one_shape_but_those_of_a_short_batch():
    read = from_arrays(4 * 70 + 1, 4, lambda x, y: (x, y))
    shapes = [s.batches[0].shape for s in read.stacks(start=0, stop=142)]
    assert shapes == [(35, 4), (35, 4), (1, 1)] * 2
    numbered = from_arrays(4 * 70 + 1, 4)
    shapes = [s.batches.shape for s in numbered.stacks(start=0, stop=142)]
    assert shapes == [(70, 4), (1, 1)] * 2


def test_stacks_of_row_numbers_are_longer():
    def size(batch_size, full_batches=None):
        return row_stack_size(batch_size=batch_size, full_batches=full_batches)

    assert size(64) == 1000
    assert size(4096) == 32
    assert size(1 << 20) == 1
    assert [size(64, n) for n in (0, 1, 22, 1001)] == [1, 1, 22, 1000]


def test_arrays_that_a_step_gathers_by_itself():
    rows = np.arange(8)
    held = IndexedBatches(ArrayExamples(([rows], {"y": rows})), batch_size=4)
    columns = held.columns()
    assert columns[0][0].numpy().tolist() == columns[1]["y"].numpy().tolist()
    assert is_like_pieces(held)
    over = SteppingOver(held, [0])
    assert over.columns() is not None
    assert is_like_pieces(over)


def sparse(size):
    rows = scipy.sparse.eye(size).tocsr()
    return IndexedBatches(ArrayExamples((rows, np.arange(size))), batch_size=4)


@pytest.mark.parametrize(
    "batches",
    [
        lambda: from_arrays(8, 4, lambda x, y: (x, y)),
        lambda: from_arrays(8, 4, less_its_mean),
        lambda: sparse(8),
        lambda: IndexedBatches(Centred((np.arange(8),) * 2), batch_size=4),
        lambda: Tenfold(ArrayExamples((np.arange(8),) * 2), batch_size=4),
        lambda: SteppingOver(sparse(8), [0]),
        lambda: IndexedBatches(
            ArrayExamples(np.array(["a", "b"])), batch_size=1
        ),
        lambda: DatasetBatches(static_dataset, batch_size=4),
        lambda: Numbered(),
    ],
)
def test_other_batches_are_read_by_the_input_pipeline(batches):
    assert batches().columns() is None


def test_large_arrays_stay_with_the_input_pipeline(monkeypatch):
    monkeypatch.setattr(stacks, "MOST_ON_DEVICE", 2 * 8 * 8)
    assert from_arrays(8, 4).columns() is not None
    assert from_arrays(9, 4).columns() is None
    assert is_like_pieces(from_arrays(9, 4))


def test_stacks_are_as_even_as_they_are_many():
    spec = (tf.TensorSpec([4, 10], tf.float32), tf.TensorSpec([4], tf.int64))

    def size(full_batches, spec=spec):
        return stack_size(spec, batch_size=4, full_batches=full_batches)

    assert size(None) == MOST_BATCHES
    assert [size(n) for n in (0, 1, 22, 50, 51, 101)] == [1, 1, 22, 50, 26, 34]
    # 4 MiB a batch; and a batch that is larger than all that is allowed.
    large = tf.TensorSpec([4, 1 << 18], tf.float32)
    assert size(None, large) == 16
    assert size(None, tf.TensorSpec([4, 1 << 26], tf.float32)) == 1


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


@pytest.mark.parametrize(
    "parts", one_in(2, [(1,), [1], {"x": 1}, 1, (1, (1, 1))]), ids=str
)
def test_the_structure_of_a_batch_stays(parts):
    numbers = tf.nest.map_structure(lambda _: np.arange(8), parts)
    assert is_like_pieces(
        IndexedBatches(ArrayExamples(numbers), batch_size=4), 0
    )
    dataset = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    batches = DatasetBatches(
        lambda: dataset.map(
            lambda x: tf.nest.map_structure(
                lambda _: x, keras.tree.lists_to_tuples(parts)
            )
        ),
        batch_size=4,
    )
    assert is_like_pieces(batches, 0)


class Astray(IndexedBatches):
    def stacks(self, **options):
        return super().stacks(**{**options, "start": 1})


def test_other_batches_are_noticed():
    assert not is_like_pieces(
        Astray(ArrayExamples(np.arange(8)), batch_size=4), 0
    )


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


def test_nothing_is_wrong_with_others():
    for source in SOURCES.values():
        assert source().why_not_stacked() is None
    assert SteppingOver(from_arrays(8, 4), [1]).why_not_stacked() is None
