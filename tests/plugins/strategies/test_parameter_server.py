"""The parts of a parameter-server run that need no servers."""

import math

import pytest

from trainer import UserError
from trainer_plugins.strategies.parameter_server import ParameterServer
from trainer_plugins.strategies.parameter_server.worker_pool import (
    cut_into_rounds,
)

TWO_AND_ONE = {
    "worker_hosts": "a:1,b:1",
    "ps_hosts": "c:1",
    "task_type": "chief",
}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("steps_per_closure", [None, 1, 5])
@pytest.mark.parametrize("bound", [None, 0, 1, 2, 3, 7, 100])
def test_rounds_keep_the_bound(workers, steps_per_closure, bound):
    for num_steps in range(1, 60):
        rounds = cut_into_rounds(
            num_steps,
            num_workers=workers,
            steps_per_closure=steps_per_closure,
            max_staleness=bound,
        )
        sizes = [size for sizes in rounds for size in sizes]
        assert sum(sizes) == num_steps
        assert min(sizes) > 0
        if steps_per_closure:
            assert max(sizes) <= steps_per_closure
        for one in rounds:
            if bound is not None:
                assert sum(one) - min(one) <= bound
                assert len(one) <= workers


def test_a_loose_bound_keeps_all_workers_busy():
    (first, *_) = cut_into_rounds(
        90, num_workers=3, steps_per_closure=None, max_staleness=8
    )
    assert first == [3, 3, 3]


@pytest.mark.parametrize(
    ("step_seconds", "sizes"),
    [
        (math.inf, [6] * 16 + [4]),
        (1.0, [6] * 16 + [4]),
        (0.02, [12] * 8 + [4]),
        (0.01, [25] * 4),
        (0.001, [50] * 2),
    ],
)
def test_closures_of_short_steps_hold_more_of_them(step_seconds, sizes):
    (only,) = cut_into_rounds(
        100,
        num_workers=2,
        steps_per_closure=None,
        max_staleness=None,
        step_seconds=step_seconds,
    )
    assert only == sizes


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
