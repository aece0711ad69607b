"""Tasks of a run that are lost, leave or differ: real processes, real TCP."""

import signal
import time

import pytest

from tests.plugins.control_plane.tasks import until

FROZEN = {"silence_seconds": 2.5}


@pytest.fixture
def running(cluster):
    """Starts a cluster, and waits until its run has started."""

    def start(workers, **options):
        group = cluster(workers, **options)
        names = [
            f"{job} {i}"
            for job, tasks in group.jobs.items()
            for i in range(len(tasks))
        ]
        tasks = dict(zip(names, group.start(*names), strict=True))
        for task in tasks.values():
            task.started()
        return group, tasks

    return start


@pytest.mark.parametrize("victim", [0, 2])
def test_all_tasks_name_the_first_cause(running, victim):
    group, tasks = running(3)
    name = f"worker {victim}"
    tasks.pop(name).call("leave", "too bad\nand more")
    expected = f"{group.label(name)} ended: ValueError: too bad"
    for task in tasks.values():
        assert task.call("reason") == [0, expected]
        # A task that leaves because of it does not hide it.
        assert task.call("wait") == [75, expected]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_task_is_named_by_all_others(running, victim):
    group, tasks = running(3)
    name = f"worker {victim}"
    since = time.monotonic()
    tasks.pop(name).kill()
    for task in tasks.values():
        code, text = task.call("wait")
        assert (code, text) == (75, f"lost {group.label(name)}")
    assert time.monotonic() - since < 10


def test_a_call_that_waits_ends_with_the_run(running):
    group, tasks = running(2)
    tasks["worker 0"].send("watched", 60.0, 60.0)
    tasks["worker 1"].kill()
    assert tasks["worker 0"].process.wait(40) == 75
    log = tasks["worker 0"].log()
    # All stacks, and the reason.
    assert "watched" in log
    assert f"start again: lost {group.label('worker 1')}" in log


def test_a_call_that_waits_too_long_is_given_up_and_named(running):
    group, tasks = running(2)
    tasks["worker 1"].send("watched", 1.0, 60.0)
    assert tasks["worker 1"].process.wait(40) == 75
    expected = f"{group.label('worker 1')} waited 1 s for its peers"
    assert expected in tasks["worker 1"].log()
    assert tasks["worker 0"].call("wait") == [75, expected]


def test_all_tasks_report_facts_that_differ(running):
    _, tasks = running(3)
    three = list(tasks.values())
    for step in (5, 10):
        for task in three:
            task.send("barrier", {"step": step}, 20.0)
        assert [task.answer()[:2] for task in three] == [[0, None]] * 3
    for task, step in zip(three, (10, 10, 20), strict=True):
        task.send("barrier", {"step": step}, 20.0)
    for task in three:
        code, text, _ = task.answer()
        assert code == 2
        assert "step: 10 on worker 0, worker 1; 20 on worker 2" in text


def test_an_expendable_task_may_be_lost_and_come_back(running):
    options = {"expendable": ["worker 0", "worker 1"], **FROZEN}
    group, tasks = running(2, chief=1, ps=1, options=options)
    chief = tasks["chief 0"]
    for losses, end in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        tasks["worker 1"].kill(end)
        until(lambda n=losses: chief.call("state")[1] == [None, None, n])
        tasks["worker 1"].kill()
        (tasks["worker 1"],) = group.start("worker 1")
        tasks["worker 1"].started()
    # One that differs is told so, and changes nothing.
    tasks["worker 0"].kill()
    (other,) = group.start("worker 0", facts={"code": "x"})
    code, text, _ = other.answer()
    assert code == 2
    assert "differ in code" in text
    assert chief.call("state") == [0, [None, None, 3]]
    tasks["worker 1"].send("wait")
    chief.close()
    assert tasks["worker 1"].answer()[:2] == [0, None]
    log = chief.log()
    assert f"Lost {group.label('worker 1')}" in log
    assert f"{group.label('worker 1')} is back" in log
