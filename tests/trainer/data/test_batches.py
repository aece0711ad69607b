"""Global batches by step, of examples and of datasets, whole and cut."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import assert_same, linear, make_trainer
from tests.sets import long, one_in, ordinary
from trainer import (
    ArrayExamples,
    Batches,
    DatasetBatches,
    Guard,
    IndexedBatches,
    UserError,
)
from trainer.data.batches import WHOLE
from trainer.plugin_api import Cut
from trainer_plugins import Checkpoint

SIZE = 53  # No batch size below divides it.


def indexed(batch_size=8, *, size=SIZE, **options):
    examples = ArrayExamples(np.arange(size))
    return IndexedBatches(examples, batch_size=batch_size, **options)


def dataset(batch_size=8, *, size=SIZE):
    return DatasetBatches(
        lambda: tf.data.Dataset.range(size).batch(batch_size),
        batch_size=batch_size,
    )


SOURCES = {
    "indexed": lambda: indexed(shuffle=True, seed=2),
    "full": lambda: indexed(shuffle=True, seed=2, drop_remainder=True),
    "dataset": dataset,
}
CUTS = [*itertools.product((1, 2, 3, 5, 8), (1, 2, 3))]


def read(batches, count, *, start=0, **cut):
    """The numbers of the first replica batches."""
    if "num_replicas" in cut:
        cut = {"replicas": range(cut["num_replicas"])} | cut
    found = batches.read(start=start, cut=Cut(**cut))
    return list(found.take(count).as_numpy_iterator())


def epoch_order(batches, epoch):
    steps = batches.steps_per_epoch
    return np.concatenate(read(batches, steps, start=epoch * steps))


@pytest.mark.parametrize("seed", [0, 1, -7, 2**40 + 5])
def test_each_epoch_is_a_permutation_of_its_own(seed):
    batches = indexed(shuffle=True, seed=seed)
    orders = [epoch_order(batches, epoch) for epoch in range(4)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(SIZE))
    for left, right in itertools.combinations([np.arange(SIZE), *orders], 2):
        assert (left != right).mean() > 0.8


# To read up to the second one would take days.
@pytest.mark.parametrize("epoch", [3, 10**9])
def test_the_order_is_that_of_index_shuffle_one_by_one(epoch):
    found = epoch_order(indexed(shuffle=True, seed=9), epoch)
    expected = [
        int(tf.random.experimental.index_shuffle(i, [9, epoch], SIZE - 1))
        for i in range(SIZE)
    ]
    np.testing.assert_array_equal(found, expected)


def test_positions_are_uniform_over_many_epochs():
    # A place among 12 has the mean 5.5 and the standard deviation 3.45.
    batches = indexed(4, size=12, shuffle=True)
    orders = np.concatenate(read(batches, 3 * 200)).reshape(200, 12)
    places = np.argsort(orders, axis=1)
    assert np.abs(places.mean(axis=0) - 5.5).max() < 5 * 3.45 / np.sqrt(200)


@pytest.mark.parametrize("start", [1, 6, long(7), long(13), 20])
@pytest.mark.parametrize("cut", [long((1, 1)), (3, 2)], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_seeking_equals_reading_up_to_there(source, start, cut):
    batches = SOURCES[source]()
    num_replicas, micro = cut
    cut = {"num_replicas": num_replicas, "micro": micro}
    reads = num_replicas * micro
    assert_same(
        read(batches, 8 * reads, start=start, **cut),
        read(batches, (start + 8) * reads, **cut)[start * reads :],
    )
    assert batches.steps_per_epoch == (6 if source == "full" else 7)
    assert batches.resume == ("skip" if source == "dataset" else "seek")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("num_replicas", "micro"),
    ordinary(CUTS, [(1, 3), (2, 1), (3, 2), (8, 3)]),
)
def test_cuts_are_the_global_batch_in_order(source, num_replicas, micro):
    # The last batch has 5 examples: fewer than many of these cuts.
    batches = SOURCES[source]()
    steps = 2 * batches.steps_per_epoch
    reads = num_replicas * micro
    found = read(batches, steps * reads, num_replicas=num_replicas, micro=micro)
    joined = [
        np.concatenate(found[i : i + reads])
        for i in range(0, len(found), reads)
    ]
    assert_same(joined, read(batches, steps))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("micro", [1, 3])
def test_several_pipelines_read_what_one_would(source, micro):
    batches = SOURCES[source]()
    whole = read(batches, 7 * micro * 6, num_replicas=6, micro=micro)
    for replicas in (range(2), range(2, 4), range(4, 6)):
        mine = read(
            batches,
            7 * micro * 2,
            replicas=replicas,
            num_replicas=6,
            micro=micro,
        )
        expected = [
            whole[group * 6 + replica]
            for group in range(7 * micro)
            for replica in replicas
        ]
        assert_same(mine, expected)


def test_the_shape_is_static_where_every_replica_has_as_many():
    def rows(batches, **cut):
        made = batches.read(start=0, cut=Cut(**cut))
        return made.element_spec.shape[0]

    full = indexed(8, drop_remainder=True)
    assert rows(full) == 8
    assert rows(full, replicas=range(2), num_replicas=2, micro=2) == 2
    assert rows(full, replicas=range(3), num_replicas=3) is None
    assert rows(indexed(8)) is None


@pytest.mark.parametrize(
    ("batch_size", "drop", "message"),
    [
        (0, False, "batch_size = 0 must be a whole number >= 1"),
        (54, True, "Choose at most 53"),
    ],
)
def test_refused_batch_sizes(batch_size, drop, message):
    with pytest.raises(UserError, match=message):
        indexed(batch_size, drop_remainder=drop)


@pytest.mark.parametrize("source", [long("full"), "indexed", "dataset"])
@pytest.mark.parametrize(
    "skipped",
    one_in(2, ([0], [3], [2, 3], [13], [0, 1, 5, 9], [40], [])),
    ids=str,
)
@pytest.mark.parametrize("start", [0, long(3)])
def test_batches_are_left_out(source, skipped, start):
    batches = SOURCES[source]()
    kept = [b for i, b in enumerate(read(batches, 60)) if i not in skipped]
    assert_same(
        read(batches.without(skipped), 14, start=start),
        kept[start : start + 14],
    )


class OfSomebodyElse(Batches):
    """Has `read` only."""

    batch_size, steps_per_epoch, resume = 8, None, "seek"

    def read(self, *, start, cut=WHOLE):
        return SOURCES["indexed"]().read(start=start, cut=cut)


@pytest.mark.parametrize("source", [*SOURCES, "of somebody else"])
@pytest.mark.parametrize("micro", [1, 2])
def test_batches_that_are_named(source, micro):
    batches = SOURCES.get(source, OfSomebodyElse)()
    every = read(batches, 40 * micro, micro=micro)
    ranges = [(0, 2), (5, 3), (9, 1), (11, 1)]
    # A dataset has no way back.
    ranges += [] if source == "dataset" else [(3, 2)]
    queue = tf.queue.FIFOQueue(9, [tf.int64], [[2]])
    for one in ranges:
        queue.enqueue(tf.constant(one, tf.int64))
    named = batches.read_named(
        lambda _: tf.unstack(queue.dequeue()), start=3, cut=Cut(micro=micro)
    )
    wanted = [
        every[(3 + first) * micro + i]
        for first, count in ranges
        for i in range(count * micro)
    ]
    found = iter(named.as_numpy_iterator())
    assert_same([next(found) for _ in wanted], wanted)


def test_a_range_of_the_past_is_replaced_by_what_follows():
    batches = SOURCES["dataset"]()
    every = read(batches, 10)
    queue = tf.queue.FIFOQueue(9, [tf.int64], [[2]])
    for one in [(4, 2), (1, 2)]:
        queue.enqueue(tf.constant(one, tf.int64))
    named = batches.read_named(
        lambda _: tf.unstack(queue.dequeue()), start=0, cut=Cut()
    )
    found = iter(named.as_numpy_iterator())
    assert_same([next(found) for _ in range(4)], every[4:8])


class Ones(Batches):
    """Batches of somebody else, which says nothing of leaving any out."""

    batch_size, steps_per_epoch, resume = 8, None, "seek"

    def read(self, *, start, cut=None):
        ones = tf.data.Dataset.from_tensors((tf.ones([8, 3]), tf.ones([8, 1])))
        return ones.repeat()


def test_a_source_that_leaves_nothing_out_is_refused_before_a_step(tmp_path):
    trainer = make_trainer(linear, data=Ones(), guard=Guard("roll_back"))
    with pytest.raises(UserError, match="Ones cannot skip batches on"):
        trainer.train(2, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    assert trainer.step == 0
