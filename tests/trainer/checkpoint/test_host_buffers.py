"""What is saved in the background is what was, however training goes on."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.checkpoint.host_buffers import Staging
from trainer.checkpoint.storage import Snapshot

SHAPE = (700, 800)
KINDS = (
    tf.float32,
    tf.float64,
    tf.float16,
    tf.bfloat16,
    tf.int32,
    tf.int64,
    tf.uint32,
    tf.bool,
)


def numbers(kind, seed):
    values = np.random.default_rng(seed).integers(0, 100, SHAPE)
    return tf.cast(values, kind)


def held(variable):
    """As `trainer._built.state.capture` takes it."""
    value = tf.identity(variable.read_value())
    return Snapshot(1, {"large": value, "small": value[0]}, {"note": 1})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_copies_stay_while_variables_change(kind):
    staging = Staging()
    for seed in (1, 2):  # The second time the memory is there.
        variable = tf.Variable(numbers(kind, seed))
        copy = staging.copy(held(variable))
        variable.assign(numbers(kind, 3))
        variable.scatter_nd_update([[0, 0]], numbers(kind, 4)[0, :1])
        expected = numbers(kind, seed).numpy()
        assert copy.arrays["large"].dtype == kind
        assert np.array_equal(copy.arrays["large"].numpy(), expected)
        assert np.array_equal(copy.arrays["small"].numpy(), expected[0])
        assert (copy.step, copy.host) == (1, {"note": 1})


def test_memory_is_taken_once():
    staging, variable = Staging(), tf.Variable(numbers(tf.float32, 1))
    spec = tf.TensorSpec(variable.shape, variable.dtype)
    staging.reserve({"large": spec})
    places = [
        np.from_dlpack(staging.copy(held(variable)).arrays["large"])
        for _ in range(3)
    ]
    assert len({place.ctypes.data for place in places}) == 1
    assert places[0].ctypes.data % 64 == 0


def test_a_shape_may_change():
    staging = Staging()
    for size in (300_000, 400_000, 300_000):
        value = tf.range(size, dtype=tf.int64)
        copy = staging.copy(Snapshot(1, {"x": value}, {}))
        assert np.array_equal(copy.arrays["x"].numpy(), np.arange(size))


def test_other_values_are_left_alone():
    arrays = {
        "text": tf.constant(["a"] * 300_000),
        "empty": tf.zeros((0, 5)),
        "array": np.zeros(300_000),
    }
    copy = Staging().copy(Snapshot(1, arrays, {}))
    assert all(copy.arrays[name] is arrays[name] for name in arrays)
