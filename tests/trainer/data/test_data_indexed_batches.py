import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import assert_same
from tests.sets import long, ordinary
from trainer import UserError
from trainer.data import ArrayExamples, IndexedBatches

SIZE = 53  # No batch size below divides it.


def make(batch_size=8, *, size=SIZE, **options):
    numbers = np.arange(size)
    return IndexedBatches(
        ArrayExamples((numbers, -numbers)), batch_size=batch_size, **options
    )


def read(
    batches, count, *, replicas=None, num_replicas=1, micro=1, start=0, every=1
):
    """The numbers of the first pieces."""
    if replicas is None:
        replicas = range(num_replicas)
    dataset = batches.pieces(
        start=start,
        every=every,
        replicas=replicas,
        num_replicas=num_replicas,
        micro=micro,
    )
    pieces = []
    for x, y in dataset.take(count).as_numpy_iterator():
        np.testing.assert_array_equal(y, -x)
        pieces.append(x)
    return pieces


def epoch_order(batches, epoch):
    steps = batches.steps_per_epoch
    return np.concatenate(read(batches, steps, start=epoch * steps))


def join(pieces, per_step):
    return [
        np.concatenate(pieces[i : i + per_step])
        for i in range(0, len(pieces), per_step)
    ]


@pytest.mark.parametrize("seed", [0, 1, -7, 2**40 + 5])
def test_each_epoch_is_a_permutation_of_its_own(seed):
    batches = make(shuffle=True, seed=seed)
    orders = [epoch_order(batches, epoch) for epoch in range(4)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(SIZE))
    for left, right in itertools.combinations([np.arange(SIZE), *orders], 2):
        assert (left != right).mean() > 0.8


def test_the_order_is_that_of_index_shuffle_one_by_one():
    found = epoch_order(make(shuffle=True, seed=9), 3)
    expected = [
        int(tf.random.experimental.index_shuffle(i, [9, 3], SIZE - 1))
        for i in range(SIZE)
    ]
    np.testing.assert_array_equal(found, expected)


def test_positions_are_uniform_over_many_epochs():
    # A place among 12 has the mean 5.5 and the standard deviation 3.45.
    batches = make(4, size=12, shuffle=True)
    pieces = read(batches, 3 * 200)
    orders = np.concatenate(pieces).reshape(200, 12)
    places = np.argsort(orders, axis=1)
    assert np.abs(places.mean(axis=0) - 5.5).max() < 5 * 3.45 / np.sqrt(200)


@pytest.mark.parametrize("start", [long(0), 1, 6, long(7), long(13), 20])
@pytest.mark.parametrize("cut", [long((1, 1)), (3, 2)], ids=str)
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_seeking_equals_reading_up_to_there(start, cut, drop_remainder):
    num_replicas, micro = cut
    batches = make(shuffle=True, seed=4, drop_remainder=drop_remainder)
    options = {"num_replicas": num_replicas, "micro": micro}
    per_step = num_replicas * micro
    assert_same(
        read(batches, 8 * per_step, start=start, **options),
        read(batches, (start + 8) * per_step, **options)[start * per_step :],
    )


def test_a_far_step_is_reached_at_once():
    # Reading up to it would take days.
    batches = make(shuffle=True, seed=1)
    epoch = 10**9
    order = epoch_order(batches, epoch)
    expected = tf.random.experimental.index_shuffle(
        tf.range(SIZE, dtype=tf.int64), [1, epoch], SIZE - 1
    )
    np.testing.assert_array_equal(order, expected)


@pytest.mark.parametrize(
    ("num_replicas", "micro", "drop_remainder"),
    ordinary(
        itertools.product((1, 2, 3, 5, 8), (1, 2, 3), (False, True)),
        [
            (1, 3, False),
            (2, 1, True),
            (3, 2, False),
            (5, 3, True),
            (8, 3, False),
        ],
    ),
)
def test_pieces_are_the_global_batch_in_order(
    num_replicas, micro, drop_remainder
):
    # The last batch has 5 examples: fewer than many of these pieces.
    batches = make(shuffle=True, seed=2, drop_remainder=drop_remainder)
    steps = 2 * batches.steps_per_epoch
    per_step = num_replicas * micro
    pieces = read(
        batches, steps * per_step, num_replicas=num_replicas, micro=micro
    )
    assert_same(join(pieces, per_step), read(batches, steps))


@pytest.mark.parametrize("micro", [1, 3])
def test_several_pipelines_read_what_one_would(micro):
    batches = make(13, shuffle=True, seed=6)
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


def test_the_shape_is_static_where_every_piece_is_alike():
    def rows(batches, **cut):
        options = {"replicas": range(1), "num_replicas": 1, "micro": 1} | cut
        return batches.pieces(start=0, **options).element_spec[0].shape[0]

    full = make(8, drop_remainder=True)
    assert rows(full) == 8
    assert rows(full, replicas=range(2), num_replicas=2, micro=2) == 2
    assert rows(full, replicas=range(3), num_replicas=3) is None
    assert rows(make(8)) is None


@pytest.mark.parametrize(
    ("batch_size", "drop", "message"),
    [
        (0, False, "batch_size = 0 must be a whole number >= 1"),
        (54, True, "Choose at most 53"),
    ],
)
def test_refused_batch_sizes(batch_size, drop, message):
    with pytest.raises(UserError, match=message):
        make(batch_size, drop_remainder=drop)
