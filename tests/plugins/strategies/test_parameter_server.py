"""The parts of a parameter-server run that need no servers."""

import pytest
import tensorflow as tf

from trainer import UserError
from trainer_plugins import ParameterServer
from trainer_plugins.strategies.parameter_server.counters import (
    StepCounts,
)

TWO_AND_ONE = {
    "worker_hosts": "a:1,b:1",
    "ps_hosts": "c:1",
    "task_type": "chief",
}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_staleness": -1}, "max_staleness = -1 must be a whole number"),
        ({"steps_per_closure": 0}, "steps_per_closure = 0 must be a whole"),
    ],
)
def test_wrong_arguments_are_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        ParameterServer(**TWO_AND_ONE, **wrong)


def test_under_slurm_one_rank_is_a_server_unless_more_are_requested(
    monkeypatch,
):
    for name, value in {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n[1-4]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert ParameterServer().cluster.name == "ps 0"
    monkeypatch.setenv("TRAINER_NUM_PS", "2")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert ParameterServer().cluster.name == "worker 0"


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
