"""What follows from an end: the pure policy, on a clock of these tests."""

import signal

import pytest

from trainer.launch.policy import End, Limits, Restart, RestartPolicy, Stop


def end(code, at=1000.0, *, ran=10.0, error="", step=None, task="worker 0"):
    return End(task, at, ran, code, error, step)


def failed(text, step, at=1000.0, **given):
    return end(1, at, error=text, step=step, **given)


def decide(ends, **limits):
    """The last of the policy's decisions."""
    policy = RestartPolicy(Limits(**limits))
    return [policy.on_end(one) for one in ends][-1]


@pytest.mark.parametrize(
    "code",
    [
        -signal.SIGKILL,
        -signal.SIGTERM,
        -signal.SIGSEGV,
        -64,
        1,
        3,
        137,
        None,
    ],
)
def test_a_first_failure_is_followed_by_a_restart_at_once(code):
    assert decide([end(code)]) == Restart(0.0, number=1)


def test_a_request_for_a_restart_does_not_count():
    assert decide([end(75)]) == Restart(0.0, number=0)
    ends = [end(75, at) for at in range(9)]
    assert isinstance(decide(ends, max_restarts=1), Restart)
    assert decide([*ends, end(-9, 10)], max_restarts=1).number == 1


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_users_mistake_is_never_repeated(limit):
    assert decide([end(2)], max_restarts=limit) == Stop("")
    assert decide([end(75), end(2)], max_restarts=limit) == Stop("")


@pytest.mark.parametrize("code", [75, -9, 1])
def test_without_restarts_the_first_end_is_the_last(code):
    assert decide([end(code)], max_restarts=0) == Stop("")


@pytest.mark.parametrize(
    "ends",
    [
        [failed("ValueError: no", 40), failed("ValueError: no", 40)],
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
    found = decide(ends, max_restarts=9)
    assert found.is_final
    assert found.why == "The same failure at the same step twice: a defect."


def test_the_same_failure_before_the_first_step_is_a_defect():
    assert decide([failed("ValueError: no", None)] * 2).is_final


@pytest.mark.parametrize(
    "ends",
    [
        [failed("ValueError: no", 40), failed("ValueError: no", 50)],
        [failed("ValueError: no", 40), failed("OSError: no", 40)],
        # Never a signal or 75.
        [end(-signal.SIGSEGV, error="x", step=4)] * 2,
        [end(75, error="StartAgain: x", step=4)] * 2,
        [end(None, error="[Errno 12]")] * 2,
        # What it was is unknown.
        [end(3, step=4)] * 2,
    ],
)
def test_another_failure_or_bad_luck_is_none(ends):
    assert isinstance(decide(ends), Restart)


def test_there_is_a_limit():
    ends = [end(-9, 1), end(75, 2), end(-9, 3), failed("OSError: a", 1, 4)]
    assert decide(ends).number == 3
    assert decide([*ends, end(-9, 5)]) == Stop(
        "That is once more than --max_restarts=3 allows within 3600 s.",
        is_final=False,
    )
    assert decide([*ends, end(-9, 5)], max_restarts=4).number == 4


def test_a_restart_counts_for_as_long_as_the_window():
    ends = [end(-9, at) for at in (0.0, 10.0, 20.0)]
    assert isinstance(decide([*ends, end(-9, 3599.0)]), Stop)
    # By then the first of the four is outside of the window.
    assert isinstance(decide([*ends, end(-9, 3600.0)]), Restart)


def test_a_task_that_is_left_out_no_longer_counts():
    policy = RestartPolicy(Limits(1))
    policy.on_end(end(-9, 1, task="worker 1"))
    assert not policy.on_end(end(-9, 2, task="worker 1")).is_final
    policy.forget("worker 1")
    assert policy.on_end(end(-9, 3)).number == 1


@pytest.mark.parametrize("code", [75, -9])
def test_later_restarts_wait_twice_as_long_each(code):
    policy = RestartPolicy(Limits(100))
    waits = [policy.on_end(end(code, at, ran=1.0)).after for at in range(10)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_minute_without_failure_resets_the_back_off():
    quick, well = {"ran": 5.0}, {"ran": 61.0}
    ends = [end(-9, 1, **quick), end(-9, 2, **quick), end(-9, 3, **well)]
    assert decide(ends).after == 0.0
    assert decide([*ends, end(-9, 4, **quick)], max_restarts=9).after == 1.0


def test_peers_that_never_come_end_it():
    """On several hosts: nothing waits without a limit."""
    early = [end(75, at) for at in range(30)]
    assert isinstance(decide(early), Restart)
    found = decide([*early, end(75, 31)])
    assert found == Stop("It did not train in 30 restarts.")
    # One that trained, or served for long, begins a new series.
    for other in (end(75, 31, step=4), end(75, 31, ran=700.0), end(-9, 31)):
        assert isinstance(decide([*early, other, end(75, 32)]), Restart)


@pytest.mark.parametrize(
    ("one", "text", "code"),
    [
        (end(75), "requests a restart (exit code 75)", 75),
        (end(3), "failed (exit code 3)", 3),
        (failed("E: no", 4), "failed (exit code 1): E: no at step 4", 1),
        (end(-signal.SIGKILL), "was killed by SIGKILL", 137),
        (end(-64, error="x"), "was killed by SIGRTMAX", 192),
        (end(None, error="no memory"), "could not be started: no memory", 1),
    ],
)
def test_an_end_is_a_clause_and_an_exit_code(one, text, code):
    assert str(one) == f"worker 0 {text}"
    assert one.exit_code == code
