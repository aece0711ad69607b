"""Step counters stay exact where some steps were run twice."""

import pytest
import tensorflow as tf

from trainer_plugins.strategies.parameter_server.counters import StepCounts


def counted(growth, *, num_steps, losses):
    """The growth of some variables after the correction.

    Args:
        growth: of each; the first one counts the updates.
        num_steps: see `StepCounts.correct`.
        losses: see there.
    """
    counts = StepCounts()
    with tf.variable_creator_scope(counts.note):
        variables = [
            tf.Variable(7, dtype=tf.int64, trainable=False) for _ in growth
        ]
    before = counts.values()
    for variable, grown in zip(variables, growth, strict=True):
        variable.assign_add(grown)
    counts.correct(
        before, updates=variables[0], num_steps=num_steps, losses=losses
    )
    return [now - 7 for now in counts.values()]


@pytest.mark.parametrize(
    ("growth", "losses"),
    [
        ([13, 13], 1),
        # A worker died after it had counted for the optimizer only, in the
        # middle of a closure or at its start.
        ([13, 14], 1),
        ([10, 11], 1),
        # Or it had counted for the updates only.
        ([13, 12], 1),
        ([11, 10], 1),
        # Each of two lost workers may account for one step.
        ([15, 17], 2),
        ([15, 13], 2),
        # The loss may be detected late.
        ([13, 14], 0),
    ],
)
def test_each_counter_is_corrected_on_its_own(growth, losses):
    assert counted(growth, num_steps=10, losses=losses) == [10, 10]


@pytest.mark.parametrize(
    ("growth", "losses"),
    [
        ([1, 2], 0),
        ([10, 20], 1),
        ([10, 0], 1),
        ([10, 9], 1),
    ],
)
def test_other_variables_are_left_alone(growth, losses):
    steps = growth[0]
    assert counted(growth, num_steps=steps, losses=losses) == growth


def test_a_variable_created_meanwhile_is_left_alone():
    counts = StepCounts()
    with tf.variable_creator_scope(counts.note):
        updates = tf.Variable(0, dtype=tf.int64)
        before = counts.values()
        late = tf.Variable(0, dtype=tf.int64)
    for variable in (updates, late):
        variable.assign_add(3)
    counts.correct(before, updates=updates, num_steps=2, losses=1)
    assert (int(updates.numpy()), int(late.numpy())) == (2, 3)
