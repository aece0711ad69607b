"""Two workers of which one is killed, stopped, late, missing or different."""

import signal
import time

import pytest

from tests.faults import reading
from tests.faults.runs import is_stopped, wait_for
from tests.sets import ordinary

PAIR = {"worker": 2}
NAMES = ("worker_0", "worker_1")
# For those who only wait for one that never comes.
SOON = "--gin.MultiWorkerMirrored.start_seconds=3.0"
# Longer than a busy machine takes to start a task.
LATE = "--gin.MultiWorkerMirrored.start_seconds=100.0"


def other(name):
    return NAMES[1 - NAMES.index(name)]


def spoken(name):
    """A task's name as sentences have it."""
    return name.replace("_", " ")


def must_name(process, name, *, code=75, seconds=60):
    """It ends in order, and its last sentence is about that task."""
    process.must_end(code, seconds=seconds)
    assert "Traceback" not in process.log
    return process.sentence(spoken(name))


def disturb(runs, victim, point, step, signal_name):
    """Starts both; one gets a signal, and the other one says who it was."""
    runs.plan(f"{victim} {point} {step} {signal_name}")
    tasks = runs.tasks(**PAIR)
    number = signal.Signals[signal_name]
    survivor = tasks[other(victim)]
    if signal_name == "SIGTERM":
        # All agree on the step at which they leave.
        for process in tasks.values():
            process.must_end(75)
        assert reading.record(runs.model_dir)["exit_reason"] == "start_again"
        return
    tasks[victim].must_end(-number)
    begin = time.monotonic()
    sentence = must_name(survivor, victim)
    assert "lost" in sentence
    # Nothing had to end it by force, and to show its stacks.
    assert "most recent call" not in survivor.log
    assert time.monotonic() - begin < 30


def fail(runs, victim, step):
    """One ends with an exception, which the other one repeats."""
    runs.plan(f"{victim} step {step} raise")
    tasks = runs.tasks(**PAIR)
    tasks[victim].must_end(1)
    assert "Traceback" in tasks[victim].log
    sentence = must_name(tasks[other(victim)], victim)
    assert "broken on purpose" in sentence
    assert "lost" not in sentence


def freeze(runs, victim, point, step):
    """One is stopped, and the other one says so when it is due."""
    seconds = 5.0
    runs.plan(f"{victim} {point} {step} SIGSTOP")
    silence = f"--gin.MultiWorkerMirrored.silence_seconds={seconds}"
    tasks = runs.tasks(silence, **PAIR)
    wait_for(lambda: is_stopped(tasks[victim].pid), "the stop")
    begin = time.monotonic()
    assert "lost" in must_name(tasks[other(victim)], victim)
    assert seconds - 2 < time.monotonic() - begin < seconds + 25
    tasks[victim].signal(signal.SIGKILL)
    tasks[victim].must_end(-signal.SIGKILL)


def finish(runs):
    runs.plan()
    for process in runs.tasks(**PAIR).values():
        process.must_end(0)


def test_a_chain_of_faults_leaves_no_trace(runs, undisturbed):
    """A kill while it saves, and one that comes late."""
    disturb(runs, "worker_0", "writing", 12, "SIGKILL")
    runs.plan("worker_1 import 0 hold")
    tasks = runs.tasks(**PAIR)
    tasks["worker_1"].wait_for(lambda: runs.is_held("worker_1"), "the hold")
    time.sleep(1.0)
    assert not tasks["worker_0"].is_over()
    runs.release()
    for process in tasks.values():
        process.must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed(**PAIR))
    reading.assert_tidy(runs.model_dir)


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize("point", ["step", "evaluation", "log", "save"])
def test_each_worker_at_each_point(runs, undisturbed, victim, point):
    disturb(runs, victim, point, 7, "SIGKILL")
    disturb(runs, victim, point, 15, "SIGTERM")
    finish(runs)
    reading.assert_equal(runs.model_dir, undisturbed(**PAIR))
    reading.assert_tidy(runs.model_dir)


@pytest.mark.long
def test_two_equal_one_in_what_they_log(undisturbed):
    """The reference of these tests is none that a fault is in."""
    found = reading.metrics(undisturbed(**PAIR))
    expected = reading.metrics(undisturbed())
    assert [(one["step"], one["split"]) for one in found] == [
        (one["step"], one["split"]) for one in expected
    ]


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize("point", ["import", "model", "setup", "begin"])
def test_a_worker_that_is_killed_at_its_start_is_named(runs, victim, point):
    runs.plan(f"{victim} {point} 0 SIGKILL")
    flag = SOON if point == "import" else LATE
    tasks = runs.tasks(flag, **PAIR)
    tasks[victim].must_end(-signal.SIGKILL)
    must_name(tasks[other(victim)], victim)
    finish(runs)


@pytest.mark.parametrize("victim", ordinary(NAMES, ["worker_0"]))
def test_a_worker_that_dies_while_tensorflow_connects_is_named(runs, victim):
    """TensorFlow itself would wait for it, much longer than anyone may."""
    runs.plan(f"{victim} connect 0 SIGKILL")
    tasks = runs.tasks(LATE, **PAIR)
    tasks[victim].must_end(-signal.SIGKILL)
    begin = time.monotonic()
    assert "lost" in must_name(tasks[other(victim)], victim)
    assert time.monotonic() - begin < 30


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
def test_a_worker_that_freezes_while_tensorflow_connects_is_named(runs, victim):
    runs.plan(f"{victim} connect 0 SIGSTOP")
    silence = "--gin.MultiWorkerMirrored.silence_seconds=5.0"
    tasks = runs.tasks(LATE, silence, **PAIR)
    wait_for(lambda: is_stopped(tasks[victim].pid), "the stop")
    begin = time.monotonic()
    assert "lost" in must_name(tasks[other(victim)], victim)
    assert time.monotonic() - begin < 40


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
def test_a_worker_that_tensorflow_cannot_connect_is_named(runs, victim):
    """The others know it, and it is well: only its connection is missing."""
    runs.plan(f"{victim} connect 0 hold")
    limit = "--gin.MultiWorkerMirrored.start_seconds=30.0"
    tasks = runs.tasks(limit, **PAIR)
    sentence = must_name(tasks[other(victim)], victim, seconds=120)
    assert "did not connect" in sentence
    assert spoken(other(victim)) not in sentence


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
def test_a_stop_that_is_shorter_than_allowed_is_survived(
    runs, undisturbed, victim
):
    runs.plan(f"{victim} step 8 SIGSTOP")
    silence = "--gin.MultiWorkerMirrored.silence_seconds=40.0"
    tasks = runs.tasks(silence, **PAIR)
    wait_for(lambda: is_stopped(tasks[victim].pid), "the stop")
    time.sleep(14.0)
    tasks[victim].signal(signal.SIGCONT)
    for process in tasks.values():
        process.must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed(**PAIR))


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize("point", ["step", "evaluation", "writing"])
def test_a_frozen_worker_is_named(runs, victim, point):
    if (victim, point) == ("worker_1", "writing"):
        pytest.skip("worker 0 alone writes")
    freeze(runs, victim, point, 8)


@pytest.mark.long
def test_a_frozen_worker_that_goes_on_later_does_no_harm(runs, undisturbed):
    """The others have left it, and have begun anew by then."""
    runs.plan("worker_1 step 8 SIGSTOP")
    tasks = runs.tasks("--gin.MultiWorkerMirrored.silence_seconds=5.0", **PAIR)
    wait_for(lambda: is_stopped(tasks["worker_1"].pid), "the stop")
    must_name(tasks["worker_0"], "worker_1")
    tasks["worker_1"].signal(signal.SIGCONT)
    must_name(tasks["worker_1"], "worker_0")
    finish(runs)
    reading.assert_equal(runs.model_dir, undisturbed(**PAIR))


@pytest.mark.parametrize("missing", ordinary(NAMES, ["worker_0"]))
def test_a_missing_worker_is_named(runs, missing):
    there = other(missing)
    begin = time.monotonic()
    tasks = runs.tasks(SOON, start=[there], **PAIR)
    must_name(tasks[there], missing)
    assert time.monotonic() - begin > 3.0


@pytest.mark.long
def test_a_late_worker_0_is_waited_for(runs):
    runs.plan("worker_0 import 0 hold")
    tasks = runs.tasks(LATE, **PAIR)
    tasks["worker_0"].wait_for(lambda: runs.is_held("worker_0"), "the hold")
    time.sleep(3.0)
    assert not tasks["worker_1"].is_over()
    runs.release()
    for process in tasks.values():
        process.must_end(0)


@pytest.mark.long
@pytest.mark.parametrize("victim", NAMES)
def test_a_worker_that_fails_is_not_called_lost(runs, victim):
    fail(runs, victim, 8)


@pytest.mark.long
def test_a_run_that_hangs_is_given_up_by_its_timeout(runs):
    """One of the two is alive, and does not get on."""
    runs.plan("worker_1 step 8 hold")
    tasks = runs.tasks("--gin.MultiWorkerMirrored.timeout_seconds=6.0", **PAIR)
    tasks["worker_0"].must_end(75, seconds=90)
    tasks["worker_1"].must_end(75, seconds=90)


@pytest.mark.long
def test_both_get_a_signal_in_one_moment(runs, undisturbed):
    """As from a cluster's manager: they leave at one step, and save once."""
    runs.plan("worker_0 step 14 hold", "worker_1 step 14 hold")
    tasks = runs.tasks(**PAIR)
    for name, process in tasks.items():
        process.wait_for(lambda name=name: runs.is_held(name), "step 14")
    for process in tasks.values():
        process.signal(signal.SIGTERM)
    runs.release()
    for process in tasks.values():
        process.must_end(75)
    assert reading.newest(runs.model_dir) in (14, 16)
    finish(runs)
    reading.assert_equal(runs.model_dir, undisturbed(**PAIR))
