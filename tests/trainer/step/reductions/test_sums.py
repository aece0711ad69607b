"""Sums go on where they were, in whatever layout and number of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.step.reductions.sums import Average, Layout, Sums, stacked

RNG = np.random.default_rng(4)


def results(scale=1.0):
    """Of a step: averages, and increments of several shapes and dtypes."""
    return {
        "loss": Average(tf.constant(scale * 0.1), tf.constant(2.0)),
        "metric:b": [
            tf.constant(RNG.normal(size=(2, 3)), tf.float64),
            tf.constant(scale),
            tf.zeros([0, 4]),
        ],
        "metric:a": [tf.constant([3, 4]), tf.constant(5, tf.int64)],
    }


def test_what_is_packed_comes_back():
    made = results()
    layout = Layout(made)
    assert layout.size == 2 + 7 + 3
    found = layout.unpack(layout.pack(made).numpy())
    assert list(found) == list(made)
    assert isinstance(found["loss"], Average)
    for name, value in made.items():
        for ours, theirs in zip(found[name], value, strict=True):
            np.testing.assert_array_equal(ours, np.asarray(theirs, "float64"))


def test_a_stored_state_comes_back_by_replica():
    layout = Layout(results())
    sums = Sums(layout, RNG.normal(size=(1, 3, layout.size)))
    again = Sums.of(sums.by_replica())
    np.testing.assert_array_equal(again.fitted(layout, 3), sums.rows)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_another_number_of_replicas_loses_nothing(replicas):
    layout = Layout(results())
    sums = Sums(layout, RNG.normal(size=(1, 3, layout.size)))
    fitted = Sums(layout, sums.fitted(layout, replicas)[np.newaxis])
    assert np.shape(fitted.rows) == (replicas, layout.size)
    expected = np.sum(sums.rows, axis=0)
    np.testing.assert_array_equal(np.sum(fitted.rows, axis=0), expected)


def test_what_a_step_no_longer_returns_is_left_out():
    made = results()
    layout = Layout(made)
    row = layout.pack(made).numpy()[np.newaxis, np.newaxis]
    other = {name: made[name] for name in ("metric:a", "loss")}
    other["metric:b"] = [tf.zeros([2])]  # Of another shape now.
    other["new"] = Average(tf.constant(1.0), tf.constant(1.0))
    fitted = Layout(other)
    rows = stacked([Sums(layout, row), None], fitted, 1)
    assert rows.shape == (2, 1, fitted.size)
    assert not rows[1].any()
    found = fitted.unpack(rows[0, 0])
    np.testing.assert_allclose(found["loss"], [0.1, 2.0])
    np.testing.assert_array_equal(found["metric:a"][0], [3, 4])
    assert not np.any(found["metric:b"][0])
    assert not np.any(found["new"])
