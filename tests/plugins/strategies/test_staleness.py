"""Staleness counts the updates between a step's read and its own update."""

import time

import pytest
import tensorflow as tf

from trainer_plugins.strategies.parameter_server.counters import Staleness


@pytest.fixture
def updates():
    return tf.Variable(5, dtype=tf.int64)


def test_updates_of_others_in_between_are_counted(updates):
    staleness = Staleness(updates)

    @tf.function
    def step(others):
        with staleness.measured():
            updates.assign_add(others)

    assert staleness.take() == 0.0
    for others in (0, 3, 6):
        step(tf.constant(others, tf.int64))
    assert int(updates.numpy()) == 5 + 9 + 3
    assert staleness.take() == 3.0
    step(tf.constant(1, tf.int64))
    assert staleness.take() == 1.0
    assert staleness.take() == 0.0


def assigned(weight, value):
    weight.assign(value)


def assigned_if_sound(weight, value):
    def update():
        weight.assign(value)
        return 0

    tf.cond(tf.reduce_sum(weight) < 1e9, update, lambda: 0)


def assigned_in_a_function(weight, value):
    tf.function(lambda: weight.assign(value))()


def scattered(weight, value):
    weight.scatter_sub(tf.IndexedSlices(value, tf.constant([0])))


@pytest.mark.parametrize(
    "update", [assigned, assigned_if_sound, assigned_in_a_function, scattered]
)
def test_an_update_is_counted_when_it_has_been_made(updates, update):
    staleness = Staleness(updates)
    weight = tf.Variable([0.0])
    seen = []

    def slowly():
        time.sleep(0.3)
        seen.append(int(updates.numpy()))
        return 1.0

    @tf.function
    def step():
        with staleness.measured():
            value = tf.ensure_shape(tf.py_function(slowly, [], tf.float32), [])
            update(weight, value[tf.newaxis])

    step()
    assert seen == [5]
    assert int(updates.numpy()) == 6
    assert staleness.take() == 0.0
