import itertools

import numpy as np
import pytest
import tensorflow as tf

from trainer.data.sharding import even_piece, piece_bounds


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 7, 24, 25, 63])
def test_pieces_tile_the_batch_evenly(size, micro, replicas):
    begin, end = piece_bounds(
        size,
        np.arange(micro * replicas),
        micro=micro,
        replicas=range(replicas),
        num_replicas=replicas,
    )
    assert begin[0] == 0
    assert end[-1] == size
    assert (begin[1:] == end[:-1]).all()
    sizes = (end - begin).reshape(micro, replicas)
    assert sizes.min() >= 0
    # Even between micro-batches, and between the replicas of each.
    assert np.ptp(sizes.sum(axis=1)) <= 1
    assert np.ptp(sizes, axis=1).max() <= 1
    # Whoever has the first examples is the last to be left empty.
    assert sizes[0, 0] == sizes.max()


def test_a_pipeline_gets_its_replicas_of_every_micro_batch():
    def bounds(replicas):
        begin, end = piece_bounds(
            23,
            np.arange(3 * len(replicas)),
            micro=3,
            replicas=replicas,
            num_replicas=5,
        )
        return list(zip(begin.tolist(), end.tolist(), strict=True))

    whole = bounds(range(5))
    assert bounds(range(3, 5)) == [
        whole[5 * m + r] for m, r in itertools.product(range(3), (3, 4))
    ]


def test_tensors_give_what_arrays_give():
    cut = {"micro": 2, "replicas": range(1, 3), "num_replicas": 4}
    from_tensors = piece_bounds(
        tf.constant(13, tf.int64), tf.range(4, dtype=tf.int64), **cut
    )
    for tensor, array in zip(
        from_tensors, piece_bounds(13, np.arange(4), **cut), strict=True
    ):
        np.testing.assert_array_equal(tensor, array)


@pytest.mark.parametrize(
    ("batch_size", "micro", "replicas", "expected"),
    [(24, 3, 4, 2), (24, 1, 1, 24), (25, 1, 2, None), (4, 2, 4, None)],
)
def test_even_piece(batch_size, micro, replicas, expected):
    assert (
        even_piece(batch_size, micro=micro, num_replicas=replicas) == expected
    )
