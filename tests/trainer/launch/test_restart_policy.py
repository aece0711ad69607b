import signal

import pytest

from trainer.launch.policy import (
    End,
    Limits,
    Restart,
    Stop,
    decide,
    is_consequence,
)

LIMITS = Limits(max_restarts=3, window_seconds=3600.0)


def end(code, at=1000.0, *, ran=10.0, error="", progress=""):
    return End(at, ran, code, error, progress)


def exception(text, step, at=1000.0, **given):
    return end(1, at, error=text, progress=f"at step {step}", **given)


def crash(at, checkpoint, number=signal.SIGSEGV):
    return end(-number, at, progress=f"after {checkpoint}")


@pytest.mark.parametrize(
    "code",
    [
        75,
        -signal.SIGKILL,
        -signal.SIGTERM,
        -signal.SIGINT,
        -signal.SIGHUP,
        -signal.SIGUSR1,
        -64,
        1,
        3,
        137,
        -signal.SIGSEGV,
        None,
    ],
)
def test_a_first_end_is_followed_by_a_restart_at_once(code):
    assert decide([end(code)], LIMITS) == Restart(0.0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_users_mistake_is_never_repeated(count):
    limits = Limits(max_restarts=count)
    assert decide([end(2)], limits) == Stop("", defect=True)
    assert decide([end(75), end(2)], limits) == Stop("", defect=True)


@pytest.mark.parametrize(
    ("code", "defect"), [(75, False), (-9, False), (1, True), (-11, True)]
)
def test_without_restarts_the_first_end_is_the_last(code, defect):
    assert decide([end(code)], Limits(max_restarts=0)) == Stop("", defect)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (
            [exception("ValueError: no", 40), exception("ValueError: no", 40)],
            "The same ValueError: no at step 40 twice: a defect, not bad luck.",
        ),
        (
            [
                exception("ValueError: no", 40),
                end(-signal.SIGKILL),
                end(75),
                exception("ValueError: no", 40),
            ],
            "The same ValueError: no at step 40 twice",
        ),
        (
            [end(3, progress="at step 40"), end(3, progress="at step 40")],
            "The same exit code 3 at step 40 twice",
        ),
        (
            [crash(1, "step_00000040"), crash(2, "step_00000040")],
            "The same SIGSEGV after step_00000040 twice",
        ),
    ],
)
def test_the_same_failure_twice_is_a_defect(ends, message):
    found = decide(ends, Limits(max_restarts=9))
    assert isinstance(found, Stop)
    assert found.why.startswith(message)
    assert found.defect


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
    ],
)
def test_all_crashes_are_the_programs_own(number):
    ends = [crash(at, "step_00000040", number) for at in (1, 2)]
    assert decide(ends, LIMITS).defect


@pytest.mark.parametrize(
    "ends",
    [
        [exception("ValueError: no", 40), exception("ValueError: no", 50)],
        [exception("ValueError: no", 40), exception("OSError: no", 40)],
        [crash(1, "step_00000040"), crash(2, "step_00000050")],
        [crash(1, "step_1"), crash(2, "step_1", signal.SIGABRT)],
        [end(75, 1), end(75, 2)],
        [end(-9, 1), end(-9, 2)],
        [end(None, 1), end(None, 2)],
        # Their progress is unknown.
        [end(3, 1), end(3, 2)],
        [end(-signal.SIGSEGV, 1), end(-signal.SIGSEGV, 2)],
        [end(1, 1, error="ValueError: no"), end(1, 2, error="ValueError: no")],
    ],
)
def test_another_failure_or_bad_luck_is_not(ends):
    assert isinstance(decide(ends, LIMITS), Restart)


def test_there_is_a_limit_for_everything():
    ends = [end(75, 1), end(-9, 2), exception("OSError: a", 1, 3), end(75, 4)]
    assert isinstance(decide(ends[:3], LIMITS), Restart)
    found = decide(ends, LIMITS)
    assert found == Stop(
        "It was restarted 3 times within 3600 s, as often as "
        "--max_restarts=3 allows.",
        defect=False,
    )
    assert isinstance(decide(ends, Limits(4)), Restart)


def test_a_restart_counts_for_as_long_as_the_window():
    ends = [end(75, at) for at in (0.0, 10.0, 20.0)]
    assert isinstance(decide([*ends, end(75, 3599.0)], LIMITS), Stop)
    # By then the first of the four is outside of the window.
    assert isinstance(decide([*ends, end(75, 3600.0)], LIMITS), Restart)


def test_later_restarts_wait_twice_as_long_each():
    limits = Limits(max_restarts=100)
    ends, waits = [], []
    for at in range(10):
        ends.append(end(75, float(at), ran=1.0))
        waits.append(decide(ends, limits).after)
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_minute_without_failure_resets_the_back_off():
    quick, well = {"ran": 5.0}, {"ran": 61.0}
    ends = [end(75, 1, **quick), end(75, 2, **quick), end(75, 3, **well)]
    assert decide(ends, LIMITS) == Restart(0.0)
    ends.append(end(75, 4, **quick))
    assert decide(ends, Limits(9)) == Restart(1.0)


KILLED = end(-signal.SIGKILL, 100.0)
FAILED = exception("ValueError: no", 40, 100.0)


@pytest.mark.parametrize(
    ("one", "fault", "expected"),
    [
        # A task that asks for a restart after a peer's death lost that peer.
        (end(75, 100.0), KILLED, True),
        (end(75, 115.0, ran=50.0), KILLED, True),
        (end(75, 115.0, ran=50.0), FAILED, True),
        # It was started after that.
        (end(75, 115.0, ran=14.0), KILLED, False),
        # Too long ago to be the reason.
        (end(75, 161.0, ran=500.0), KILLED, False),
        # It came first.
        (end(75, 99.0), KILLED, False),
        # All were preempted together.
        (end(75, 101.0), end(75, 100.0), False),
        # A lost peer may look like a failure; a failure in all does not.
        (exception("UnavailableError: x", 40, 101.0), KILLED, True),
        (end(-signal.SIGABRT, 101.0), KILLED, True),
        (exception("ValueError: no", 40, 101.0), FAILED, False),
        (end(-signal.SIGKILL, 101.0), KILLED, False),
        (end(2, 101.0), KILLED, False),
    ],
)
def test_an_end_that_follows_from_another_one(one, fault, expected):
    assert is_consequence(one, [fault]) is expected
    assert not is_consequence(one, [])
