"""`python -m trainer.launch`: what it starts again, passes on and leaves."""

import os
import re
import signal
import time

import pytest

from tests.faults import reading
from tests.faults.runs import children, is_gone, is_stopped, wait_for

PAIR = ("--num_workers=2",)
NAMES = ("worker_0", "worker_1")


def test_a_kill_is_made_good_and_sigterm_is_passed_on(runs):
    """Two workers, with one restart; the launcher is asked to end then."""
    launcher, _ = hold_all(
        runs, "worker_1 step 8 SIGKILL", names=["worker_0"], at="step 16"
    )
    launcher.sentence("worker 1", "SIGKILL")
    # The other one has lost it by its death, and said so.
    assert re.search("lost worker 1", runs.task_log("worker_0"))
    pids = [runs.find(name) for name in NAMES]
    launcher.signal(signal.SIGTERM)
    time.sleep(0.3)
    runs.release()
    launcher.must_end(75)
    assert all(map(is_gone, pids))
    newest = reading.newest(runs.model_dir)
    assert newest >= 16
    assert reading.updates(reading.checkpoints(runs.model_dir)[newest]) == (
        newest
    )
    record = reading.record(runs.model_dir)
    assert (record["exit_reason"], record["restarts"]) == ("start_again", 1)


@pytest.mark.long
def test_two_kills_leave_no_trace(runs, undisturbed):
    runs.plan("worker_1 step 8 SIGKILL", "worker_0 evaluation 16 SIGKILL")
    launcher = runs.launch(*PAIR).must_end(0)
    for name in ("worker 0", "worker 1"):
        launcher.sentence(name, "SIGKILL")
    # Each of the two lost the other one by its death: that is named too.
    assert "worker 1" in runs.task_log("worker_0")
    assert "worker 0" in runs.task_log("worker_1")
    reading.assert_equal(runs.model_dir, undisturbed(worker=2))
    assert reading.record(runs.model_dir)["restarts"] == 2


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize(
    ("point", "signal_name"),
    [
        ("import", "SIGTERM"),
        ("connect", "SIGKILL"),
        ("setup", "SIGKILL"),
        ("save", "SIGTERM"),
        ("writing", "SIGKILL"),
    ],
)
def test_a_task_at_each_point(runs, undisturbed, victim, point, signal_name):
    if (victim, point) == ("worker_1", "writing"):
        pytest.skip("worker 0 alone writes")
    runs.plan(f"{victim} {point} 0 {signal_name}")
    runs.launch(*PAIR).must_end(0)
    assert (runs.plan_dir / "done_0").exists()
    reading.assert_equal(runs.model_dir, undisturbed(worker=2))


def hold_all(runs, *lines, names=NAMES, at="import 0"):
    """Starts a launch whose tasks wait; returns it and their numbers.

    Args:
        runs: of the test.
        *lines: what else is planned, before that.
        names: those that wait.
        at: where, and from which step on.
    """
    runs.plan(*lines, *(f"{name} {at} hold" for name in names))
    launcher = runs.launch(*PAIR)
    for name in names:
        launcher.wait_for(lambda name=name: runs.is_held(name), name)
    return launcher, [runs.find(name) for name in names]


def test_a_killed_launcher_leaves_no_orphan(runs):
    launcher, pids = hold_all(runs)
    assert not any(map(is_gone, pids))
    launcher.signal(signal.SIGKILL)
    launcher.must_end(-signal.SIGKILL)
    for pid in pids:
        wait_for(lambda pid=pid: is_gone(pid), "the task's end", seconds=30)


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
)
def test_a_signal_is_passed_on_and_the_state_is_saved(
    runs, undisturbed, number
):
    launcher, _ = hold_all(runs, names=["worker_0"], at="step 10")
    pids = [runs.find(name) for name in NAMES]
    launcher.signal(number)
    time.sleep(0.3)
    runs.release()
    launcher.must_end(75)
    assert all(map(is_gone, pids))
    assert reading.newest(runs.model_dir) >= 10
    assert reading.record(runs.model_dir)["exit_reason"] == "start_again"
    runs.launch(*PAIR).must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed(worker=2))


def test_a_second_ctrl_c_waits_no_longer(runs):
    """Nor for tasks that ignore it."""
    launcher, pids = hold_all(
        runs, *(f"{name} import 0 ignore" for name in NAMES)
    )
    launcher.signal(signal.SIGINT)
    time.sleep(0.5)
    assert not launcher.is_over()
    assert not any(map(is_gone, pids))
    begin = time.monotonic()
    launcher.signal(signal.SIGINT)
    launcher.must_end(130, seconds=60)
    assert time.monotonic() - begin < 15
    for pid in pids:
        wait_for(lambda pid=pid: is_gone(pid), "the task's end", seconds=30)


def test_restarts_have_a_limit(runs):
    """Killed in each life; the others are not blamed, and end too."""
    runs.plan(*["worker_1 import 0 SIGKILL"] * 9)
    launcher = runs.launch(*PAIR, "--max_restarts=2").must_end(137)
    assert "worker 1" in launcher.log
    # Nine were planned: it has lived three times.
    done = sorted(path.name for path in runs.plan_dir.glob("done_*"))
    assert len(done) == 3
    assert not children(launcher.pid)


def test_the_same_failure_twice_ends_it_with_its_traceback(runs):
    runs.plan(*["worker_1 import 0 raise"] * 9)
    launcher = runs.launch(*PAIR, "--max_restarts=9").must_end(1)
    assert len(list(runs.plan_dir.glob("done_*"))) == 2
    assert "worker 1" in launcher.log
    # The end of its traceback: where it was, and what.
    assert "user_code.py" in launcher.log
    assert "RuntimeError: broken on purpose" in launcher.log


@pytest.mark.long
def test_another_failure_is_tried_again(runs, undisturbed):
    """The same exception at another step may be bad luck."""
    runs.plan("worker_1 step 6 raise", "worker_1 step 14 raise")
    launcher = runs.launch(*PAIR).must_end(0)
    assert launcher.log.count("broken on purpose") >= 2
    reading.assert_equal(runs.model_dir, undisturbed(worker=2))


@pytest.mark.long
def test_the_first_failure_ends_all_without_restarts(runs):
    runs.plan("worker_1 step 8 raise")
    launcher = runs.launch(*PAIR, "--max_restarts=0").must_end(1)
    assert "worker 1" in launcher.log
    assert "RuntimeError: broken on purpose" in launcher.log
    assert len(list(runs.plan_dir.glob("done_*"))) == 1


def test_what_the_user_gave_wrong_is_never_started_again(runs):
    flag = "--gin.Adam.learning_rat=1"
    launcher = runs.launch(*PAIR, "--max_restarts=9", flags=[flag])
    launcher.must_end(2)
    assert "learning_rat" in launcher.log
    assert "Traceback" not in launcher.log
    for name in NAMES:
        # Once, and not again.
        assert runs.task_log(name).count("error:") <= 1


@pytest.mark.long
def test_a_stopped_task_is_ended_and_started_again(runs, undisturbed):
    runs.plan("worker_1 step 8 SIGSTOP")
    launcher = runs.launch(*PAIR)
    pid = runs.find_new("worker_1")
    wait_for(lambda: is_stopped(pid), "the stop")
    launcher.must_end(0)
    assert "worker 1" in runs.task_log("worker_0")
    assert "SIGSTOP" in launcher.log
    reading.assert_equal(runs.model_dir, undisturbed(worker=2))


@pytest.mark.long
def test_a_launcher_that_is_stopped_with_its_tasks_goes_on(runs, undisturbed):
    """As a scheduler suspends a job."""
    launcher, pids = hold_all(runs, at="step 8")
    all_of_them = [launcher.pid, *pids]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in all_of_them:
            os.kill(pid, number)
        time.sleep(3.0)
    runs.release()
    launcher.must_end(0)
    assert reading.record(runs.model_dir)["restarts"] == 0
    reading.assert_equal(runs.model_dir, undisturbed(worker=2))


@pytest.mark.long
def test_sigusr1_saves_and_goes_on(runs):
    launcher, _ = hold_all(runs, names=["worker_0"], at="step 14")
    launcher.signal(signal.SIGUSR1)
    time.sleep(0.5)
    runs.release()
    launcher.must_end(0)
    # Both tasks have agreed on a step that is no multiple of the period.
    assert set(reading.checkpoints(runs.model_dir)) - {6, 12, 18, 24}


@pytest.mark.long
def test_one_process_under_supervision(runs, undisturbed):
    runs.plan("worker_0 writing 12 SIGKILL", "single writing 12 SIGKILL")
    launcher = runs.launch("--num_workers=1", flags=["--strategy=default"])
    launcher.must_end(0)
    assert "SIGKILL" in launcher.log
    reading.assert_equal(runs.model_dir, undisturbed("--strategy=default"))
