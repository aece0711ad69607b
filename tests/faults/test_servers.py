"""Parameter servers: workers come and go, a lost server ends the run.

Workers and servers run no callbacks here. So the chief is held where the
fault shall come, and the test itself sends the signals.
"""

import os
import signal
import time

import pytest

from tests.faults import reading
from tests.faults.runs import is_stopped, wait_for

CLUSTER = {"chief": 1, "worker": 2, "ps": 1}
SMALL = {"chief": 1, "worker": 1, "ps": 1}
LAUNCH = ("--num_workers=1", "--num_ps=1")
SILENCE = "--gin.ParameterServer.silence_seconds=6.0"
LOSSES = [
    ("step", signal.SIGKILL),
    ("evaluation", signal.SIGKILL),
    ("save", signal.SIGSTOP),
    ("writing", signal.SIGKILL),
]


def must_have_done(runs, steps):
    """All of them, and none twice."""
    path = reading.checkpoints(runs.model_dir)[steps]
    assert reading.is_whole(path)
    assert reading.updates(path) == steps
    found = reading.metrics(runs.model_dir)
    logged = [one["step"] for one in found if one["split"] == "train"]
    assert logged == sorted(logged)
    assert logged[-1] == steps


def hold(runs, point, step, tasks=None, **counts):
    """Starts the tasks, and waits until the chief is there."""
    runs.plan(f"chief_0 {point} {step} hold")
    tasks = runs.tasks(SILENCE, **counts)
    tasks["chief_0"].wait_for(lambda: runs.is_held("chief_0"), point)
    return tasks


def finish(runs, **counts):
    runs.plan()
    tasks = runs.tasks(**counts)
    for process in tasks.values():
        process.must_end(0)
    must_have_done(runs, 24)


def test_a_worker_comes_back_and_a_lost_server_ends_the_attempt(runs):
    """Under the launcher, which starts both again."""
    runs.plan("chief_0 step 8 hold")
    launcher = runs.launch(*LAUNCH, flags=[SILENCE])
    launcher.wait_for(lambda: runs.is_held("chief_0"), "step 8")
    worker, server = runs.find("worker_0"), runs.find("ps_0")
    os.kill(worker, signal.SIGKILL)
    again = runs.find_new("worker_0", worker)
    # The others have not ended for it.
    assert runs.find("ps_0") == server
    runs.release()
    wait_for_step(runs, launcher, 12)
    os.kill(server, signal.SIGKILL)
    launcher.must_end(0)
    assert again != worker
    for name in ("chief_0", "worker_0"):
        assert "lost ps 0" in runs.task_log(name)
    for name in ("worker 0", "ps 0"):
        assert name in launcher.log
    must_have_done(runs, 24)


def wait_for_step(runs, launcher, step):
    launcher.wait_for(lambda: runs.phase("chief_0")[1] >= step, f"step {step}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "victim"),
    [
        ("step", "worker_0"),
        ("evaluation", "worker_1"),
        ("save", "worker_1"),
        ("writing", "worker_0"),
    ],
)
def test_the_others_do_the_work_of_a_killed_worker(runs, victim, point):
    tasks = hold(runs, point, 8, **CLUSTER)
    tasks[victim].signal(signal.SIGKILL)
    tasks[victim].must_end(-signal.SIGKILL)
    runs.release()
    tasks["chief_0"].must_end(0)
    must_have_done(runs, 24)


@pytest.mark.long
@pytest.mark.parametrize(("point", "number"), LOSSES)
def test_a_lost_server_is_named_by_all(runs, point, number):
    tasks = hold(runs, point, 8, **SMALL)
    tasks["ps_0"].signal(number)
    begin = time.monotonic()
    runs.release()
    for name in ("chief_0", "worker_0"):
        tasks[name].must_end(75, seconds=60)
        tasks[name].sentence("ps 0")
    assert time.monotonic() - begin < 40
    tasks["ps_0"].signal(signal.SIGKILL)
    tasks["ps_0"].end()
    finish(runs, **SMALL)


@pytest.mark.long
@pytest.mark.parametrize(("point", "number"), LOSSES)
def test_a_lost_chief_is_named_by_all(runs, point, number):
    tasks = hold(runs, point, 8, **SMALL)
    tasks["chief_0"].signal(number)
    for name in ("ps_0", "worker_0"):
        tasks[name].must_end(75, seconds=60)
        tasks[name].sentence("chief 0")
    tasks["chief_0"].signal(signal.SIGKILL)
    tasks["chief_0"].end()
    finish(runs, **SMALL)


@pytest.mark.long
def test_a_killed_worker_comes_back_twice_on_its_own(runs):
    tasks = hold(runs, "step", 8, **SMALL)
    for _ in range(2):
        tasks["worker_0"].signal(signal.SIGKILL)
        tasks["worker_0"].must_end(-signal.SIGKILL)
        tasks |= runs.tasks(SILENCE, start=["worker_0"], **SMALL)
        time.sleep(1.0)
    runs.release()
    for process in tasks.values():
        process.must_end(0)
    must_have_done(runs, 24)


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "point"),
    [
        ("chief_0", "import"),
        ("worker_0", "import"),
        ("ps_0", "import"),
        ("ps_0", "connect"),
    ],
)
def test_a_task_that_dies_before_all_are_connected_is_named(
    runs, victim, point
):
    runs.plan(f"{victim} {point} 0 SIGKILL")
    flag = "--gin.ParameterServer.start_seconds="
    flag += "3.0" if point == "import" else "20.0"
    tasks = runs.tasks(flag, SILENCE, **SMALL)
    tasks[victim].must_end(-signal.SIGKILL)
    for name, process in tasks.items():
        if name != victim:
            process.must_end(75, seconds=90)
            process.sentence(victim.replace("_", " "))
    finish(runs, **SMALL)


@pytest.mark.long
def test_a_worker_that_dies_before_it_serves_may_come_back(runs):
    """The chief waits for it in TensorFlow, as for any worker later."""
    runs.plan("worker_0 connect 0 SIGKILL")
    tasks = runs.tasks(SILENCE, **SMALL)
    tasks["worker_0"].must_end(-signal.SIGKILL)
    tasks |= runs.tasks(SILENCE, start=["worker_0"], **SMALL)
    for process in tasks.values():
        process.must_end(0)
    must_have_done(runs, 24)


@pytest.mark.long
@pytest.mark.parametrize("job", ["chief_0", "ps_0"])
def test_sigterm_to_who_holds_the_state_saves(runs, job):
    """A server cannot save: it tells the chief."""
    tasks = hold(runs, "step", 8, **SMALL)
    tasks[job].signal(signal.SIGTERM)
    time.sleep(1.0)
    runs.release()
    for name, process in tasks.items():
        process.must_end(75, 0 if name != "chief_0" else 75)
    newest = reading.newest(runs.model_dir)
    assert newest >= 8
    assert reading.updates(reading.checkpoints(runs.model_dir)[newest]) == (
        newest
    )
    finish(runs, **SMALL)


@pytest.mark.long
def test_sigterm_to_all_at_once_saves_once(runs):
    """What a cluster's manager does, through the launcher."""
    runs.plan("chief_0 step 8 hold")
    launcher = runs.launch(*LAUNCH, flags=["--gin.Checkpoint.every=1000"])
    launcher.wait_for(lambda: runs.is_held("chief_0"), "step 8")
    launcher.signal(signal.SIGTERM)
    time.sleep(0.5)
    runs.release()
    launcher.must_end(75)
    assert len(reading.whole_steps(runs.model_dir)) == 1
    assert reading.record(runs.model_dir)["exit_reason"] == "start_again"
    runs.plan()
    runs.launch(*LAUNCH).must_end(0)
    must_have_done(runs, 24)


@pytest.mark.long
def test_a_frozen_worker_of_two_is_done_without(runs):
    tasks = hold(runs, "step", 8, **CLUSTER)
    tasks["worker_1"].signal(signal.SIGSTOP)
    wait_for(lambda: is_stopped(tasks["worker_1"].pid), "the stop")
    runs.release()
    tasks["chief_0"].must_end(0)
    must_have_done(runs, 24)
