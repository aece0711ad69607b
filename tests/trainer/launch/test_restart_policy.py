"""What follows from an end: the pure policy, on a clock of these tests."""

import signal

import pytest

from trainer.launch.policy import (
    End,
    Failure,
    Limits,
    Restart,
    RestartPolicy,
)


def end(code, at=1000.0, *, ran=10.0, error="", step=None, task="worker 0"):
    return End(task, at, ran, code, error, step)


def failed(text, step, at=1000.0, **given):
    return end(1, at, error=text, step=step, **given)


def decide(ends, **limits):
    """The last of the policy's decisions."""
    policy = RestartPolicy(Limits(**limits))
    for one in ends[:-1]:
        policy.on_end(one)
    return policy.on_end(ends[-1])


def refuse(ends, **limits):
    """The failure that the last end is."""
    with pytest.raises(Failure) as failure:
        decide(ends, **limits)
    assert failure.value.end is ends[-1]
    return failure.value


def test_a_request_for_a_restart_does_not_count():
    ends = [end(75, at) for at in range(9)]
    assert decide(ends, max_restarts=1).number == 0
    assert decide([*ends, end(-9, 10)], max_restarts=1).number == 1


def test_an_end_after_progress_neither_waits_nor_counts():
    ends = [end(-9, 10.0 * n, step=6 * n, ran=5.0) for n in range(9)]
    assert decide(ends, max_restarts=1) == Restart(0.0, number=0)
    # From here on it does not come further: it counts, and it waits.
    stuck = [end(-9, 100.0 + n, step=48, ran=1.0) for n in range(2)]
    assert decide([*ends, stuck[0]], max_restarts=2) == Restart(1.0, number=2)
    assert "--max_restarts=2" in str(refuse([*ends, *stuck], max_restarts=2))


def test_progress_is_what_the_run_has_saved_where_the_task_has_no_step():
    ends = [End("worker 0", 10.0 * n, 5.0, -9, saved=100 * n) for n in range(9)]
    assert decide(ends, max_restarts=1) == Restart(0.0, number=0)
    stuck = End("worker 0", 99.0, 5.0, -9, saved=800)
    assert "--max_restarts=1" in str(refuse([*ends, stuck], max_restarts=1))


@pytest.mark.parametrize(
    ("code", "limit"), [(2, 0), (2, 3), (75, 0), (-9, 0), (1, 0)]
)
def test_a_users_mistake_and_without_restarts_any_end_is_the_last(code, limit):
    assert refuse([end(code)], max_restarts=limit).is_final


@pytest.mark.parametrize(
    "ends",
    [
        [failed("ValueError: no", None)] * 2,
        # In any task, and whatever happened in between.
        [
            failed("ValueError: no", 40),
            end(-signal.SIGKILL),
            end(75),
            failed("ValueError: no", 40, task="worker 1"),
        ],
    ],
)
def test_the_same_failure_twice_is_a_defect(ends):
    found = refuse(ends, max_restarts=9)
    assert found.is_final
    assert "The same failure happened twice at the same step: a bug." in str(
        found
    )


@pytest.mark.parametrize(
    "ends",
    [
        [failed("ValueError: no", 40), failed("ValueError: no", 50)],
        [failed("ValueError: no", 40), failed("OSError: no", 40)],
        # Never a signal or 75.
        [end(-signal.SIGSEGV, error="x", step=4)] * 2,
        [end(75, error="StartAgain: x", step=4)] * 2,
        # What it was is unknown.
        [end(3, step=4)] * 2,
    ],
)
def test_another_failure_or_bad_luck_is_none(ends):
    assert isinstance(decide(ends), Restart)


def test_there_is_a_limit_within_the_window():
    ends = [end(-9, 1), end(75, 2), end(-9, 3), failed("OSError: a", 1, 4)]
    assert decide(ends).number == 3
    found = refuse([*ends, end(-9, 5)])
    assert not found.is_final
    assert "one restart more than --max_restarts=3 allows an hour" in str(found)
    assert decide([*ends, end(-9, 5)], max_restarts=4).number == 4
    # By then the first of the four is outside of the window.
    assert isinstance(decide([*ends, end(-9, 3601.0)]), Restart)


def test_later_restarts_wait_twice_as_long_each_until_one_runs_for_a_minute():
    policy = RestartPolicy(Limits(100))
    waits = [policy.on_end(end(-9, at, ran=1.0)).after for at in range(10)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert policy.on_end(end(-9, 11, ran=61.0)).after == 0.0
    assert policy.on_end(end(-9, 12, ran=1.0)).after == 1.0


def test_peers_that_never_come_end_it():
    """On several hosts: nothing waits without a limit."""
    early = [end(75, at) for at in range(30)]
    assert "not trained in 30 restarts" in str(refuse([*early, end(75, 31)]))
    # One that trained, or served for long, begins a new series.
    for other in (end(75, 31, step=4), end(75, 31, ran=700.0), end(-9, 31)):
        assert isinstance(decide([*early, other, end(75, 32)]), Restart)
