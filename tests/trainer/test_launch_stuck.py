"""Tasks that do not end by themselves, and tasks that only need longer."""

import os
import signal
import time

import pytest

from tests.trainer.launching import AWAIT, LIFE, finish, lives, pid_of

LEAVES = LIFE + "if life == 1: time.sleep(1); leave(40)\n" + AWAIT
FREEZES = LIFE + "if life == 1: kill(signal.SIGSTOP)\n" + AWAIT


@pytest.mark.parametrize("min_workers", [None, 1])
@pytest.mark.parametrize(
    "programs", [[FREEZES], [FREEZES, LIFE + AWAIT], [LIFE + AWAIT, FREEZES]]
)
def test_a_stopped_task_is_started_again(launch, programs, min_workers):
    """The chief or another one; or the only one that runs on this host."""
    one = launch(
        *(("worker", number, text) for number, text in enumerate(programs)),
        max_restarts=1,
        min_workers=min_workers,
        stopped_seconds=1,
    )
    frozen = programs.index(FREEZES)
    one.wait_for(f"worker_{frozen}", "life=2")
    code, out, err = finish(one)
    assert code == 0, err
    name = f"worker {frozen}"
    assert f"{name} has been stopped (SIGSTOP) for 1 s: it is killed." in err
    assert f"Done. 1 restart: {name} once." in out


def test_a_short_stop_is_no_harm(launch):
    one = launch(("worker", 0, LIFE + AWAIT), stopped_seconds=1)
    one.wait_for("worker_0", "life=1")
    pid = pid_of(one.log("worker_0"))
    for _ in range(4):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)
    assert finish(one)[0] == 0


def test_time_in_which_the_launcher_was_stopped_too_does_not_count(launch):
    """As when a scheduler suspends a job."""
    one = launch(("worker", 0, LIFE + AWAIT), stopped_seconds=3)
    one.wait_for("worker_0", "life=1")
    pid = pid_of(one.log("worker_0"))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.3)
    one.process.send_signal(signal.SIGSTOP)
    time.sleep(3.5)
    one.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    os.kill(pid, signal.SIGCONT)
    assert finish(one)[0] == 0


def test_a_chief_that_saves_is_waited_for(launch):
    """Its peer has left before, and could not meet it."""
    saved = "os.path.dirname(path) + '/saved'"
    chief = LIFE + (
        f"if life == 1: time.sleep(3); open({saved}, 'w').close(); leave(40)\n"
    )
    peer = LIFE + (
        "if life == 1: time.sleep(1); leave(40)\n"
        f"print('saved:', os.path.exists({saved}))\n"
    )
    one = launch(
        ("worker", 0, chief),
        ("worker", 1, peer),
        max_restarts=3,
        met_seconds=0.3,
    )
    code, out, err = one.result()
    assert code == 0, err
    assert "saved: True" in one.log("worker_1")
    assert "2 restarts: worker 0 once, worker 1 once." in out


def test_who_stays_in_a_run_for_good_is_ended(launch):
    one = launch(
        (
            "worker",
            0,
            LIFE + "if life == 1: time.sleep(1); leave(40)\n" + AWAIT,
        ),
        ("worker", 1, LIFE + AWAIT),
        max_restarts=3,
        left_behind_seconds=1,
        met_seconds=0.3,
    )
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=2")
    code, _, err = finish(one)
    assert code == 0, err
    assert "worker 1 still is in a run that ended 1 s ago: it is killed" in err
    assert (lives(one, "worker_0"), lives(one, "worker_1")) == (2, 2)


def test_who_left_before_it_met_anyone_is_not_waited_for(launch):
    """The other one still waits for it: it would wait in vain."""
    one = launch(
        (
            "worker",
            0,
            LIFE + "if life == 1: time.sleep(1); sys.exit(75)\n" + AWAIT,
        ),
        ("worker", 1, LIFE + AWAIT),
        max_restarts=3,
        left_behind_seconds=1,
        met_seconds=0.3,
    )
    one.wait_for("worker_0", "life=2")
    time.sleep(1.5)
    assert finish(one)[0] == 0
    assert lives(one, "worker_1") == 1
