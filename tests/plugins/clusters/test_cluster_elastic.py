import itertools
import json
import signal
import time

import pytest

from plugins.clusters.cluster import Cluster
from plugins.clusters.rendezvous import meet
from tests.plugins.clusters.meetings import (
    Task,
    cluster_of,
    open_gates,
    wait_for_port,
)
from trainer import UserError

# Longer than a busy machine takes to start a task.
LONG = 60.0


def met(addresses, index):
    """What a member of a cluster of some workers says."""
    return (0, [f"worker {index}", {"worker": addresses}])


def workers(jobs, indices):
    return [jobs["worker"][index] for index in indices]


def test_a_full_cluster_waits_for_nobody():
    jobs = cluster_of(3, chief=1)
    given = {"min_workers": 1, "settle": LONG, "timeout": LONG}
    tasks = [Task(jobs, i, **given) for i in (2, 0, 1)]
    for task in tasks:
        task.wait_until_it_waits()
    tasks.append(Task(jobs, 0, "chief", **given))
    for task in tasks:
        code, text, seconds = task.result()
        assert (code, text) == (0, "met")
        assert seconds < LONG


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_any_order_of_arrival_ends_in_one_cluster(order):
    jobs = cluster_of(3)
    # Less than what it takes to notice that a leader is silent.
    given = {"min_workers": 2, "settle": LONG, "timeout": 12, "gate": True}
    tasks = [Task(jobs, i, **given) for i in order]
    for task in tasks:
        open_gates([task])
        if task is not tasks[-1]:
            task.wait_until_it_waits()
            # Until it has found who leads by now.
            time.sleep(0.5)
    assert [task.result()[:2] for task in tasks] == [(0, "met")] * 3


@pytest.mark.parametrize(
    "there", [(0, 1, 2), (0, 2, 3), (1, 2, 3), (0, 3), (2, 3), (1, 3)]
)
def test_who_is_there_meets(there):
    jobs = cluster_of(4)
    given = {"min_workers": 2, "settle": 2, "timeout": LONG, "gate": True}
    tasks = [Task(jobs, i, **given) for i in there]
    for place, task in enumerate(open_gates(tasks)):
        assert task.result()[:2] == met(workers(jobs, there), place)


def test_workers_meet_without_their_chief():
    jobs = cluster_of(2, chief=1, evaluator=1)
    given = {"min_workers": 2, "settle": 2, "timeout": LONG, "gate": True}
    expected = {"worker": jobs["worker"], "evaluator": jobs["evaluator"]}
    tasks = [Task(jobs, i, **given) for i in range(2)]
    for place, task in enumerate(open_gates(tasks)):
        assert task.result()[:2] == (0, [f"worker {place}", expected])


def test_one_may_be_enough():
    jobs = cluster_of(2)
    task = Task(jobs, 1, min_workers=1, settle=0.5)
    assert task.result()[:2] == met(workers(jobs, [1]), 0)


@pytest.mark.parametrize("late", [0, 2])
def test_a_late_one_is_waited_for_as_long_as_new_ones_come(late):
    jobs = cluster_of(4)
    given = {"min_workers": 2, "settle": 4, "timeout": LONG, "gate": True}
    tasks = {i: Task(jobs, i, **given) for i in (1, 3, late)}
    for index in (1, 3, late):
        open_gates([tasks[index]])
        # Added up, longer than nobody must have come.
        time.sleep(2.5)
    there = sorted(tasks)
    for place, index in enumerate(there):
        code, text, _ = tasks[index].result()
        assert (code, text) == met(workers(jobs, there), place)


def test_too_few_are_not_enough_and_the_missing_are_named():
    jobs = cluster_of(4)
    tasks = [
        Task(jobs, i, min_workers=3, settle=0.1, timeout=5) for i in (1, 3)
    ]
    for task in tasks:
        code, text, _ = task.result()
        assert code == 75
        assert text == (
            f"peers missing after 5 s: worker 0 ({jobs['worker'][0]}), "
            f"worker 2 ({jobs['worker'][2]}); min_workers is 3"
        )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_when_the_leader_is_lost_the_next_one_leads(how):
    jobs = cluster_of(4)
    given = {"min_workers": 3, "settle": 0.1, "timeout": LONG, "gate": True}
    leader, *others = [Task(jobs, i, **given) for i in range(3)]
    open_gates([leader, *others[1:]])
    # Until the other one is with the leader.
    time.sleep(1.5)
    leader.process.send_signal(how)
    others.append(Task(jobs, 3, **given))
    open_gates([others[0], others[2]])
    for place, task in enumerate(others):
        assert task.result()[:2] == met(workers(jobs, (1, 2, 3)), place)


def test_different_facts_end_an_elastic_meeting():
    jobs = cluster_of(3)
    given = {"min_workers": 2, "settle": LONG, "timeout": LONG}
    tasks = [
        Task(jobs, i, facts={"config": "ab"[i == 2]}, **given) for i in range(3)
    ]
    for task in tasks:
        code, text, _ = task.result()
        assert code == 2
        assert 'differ in config: "a" on worker 0, worker 1; "b"' in text


def test_a_different_min_workers_is_a_difference():
    jobs = cluster_of(2)
    tasks = [Task(jobs, i, min_workers=i + 1, settle=LONG) for i in range(2)]
    for task in tasks:
        code, text, _ = task.result()
        assert code == 2
        assert "differ in min_workers: 1 on worker 0; 2 on worker 1" in text


def test_strangers_do_not_count():
    jobs = cluster_of(3)
    task = Task(jobs, 1, min_workers=2, settle=0.2, timeout=4)
    tasks = {f"worker {i}": a for i, a in enumerate(jobs["worker"])}
    with (
        wait_for_port(jobs["worker"][1]) as hesitates,
        wait_for_port(jobs["worker"][1]) as intrudes,
        wait_for_port(jobs["worker"][1]) as confuses,
    ):
        hello = {"name": "worker 2", "tasks": tasks, "facts": {}}
        hesitates.sendall(json.dumps({"hello": hello}).encode() + b"\n")
        intrudes.sendall(b'{"join": true}\n')
        confuses.sendall(b'{"admit": {"name": "x"}}\n{"go": ["worker 1"]}\n')
        code, text, _ = task.result()
    assert code == 75
    assert f"worker 0 ({jobs['worker'][0]}), worker 2" in text


@pytest.mark.parametrize("min_workers", [0, 3])
def test_an_impossible_number_is_refused(min_workers):
    cluster = Cluster(cluster_of(2), "worker", 0, "test")
    with pytest.raises(UserError, match="has 2 workers. Choose 1 to 2"):
        meet(
            cluster,
            jobs=["worker"],
            facts={},
            timeout_seconds=1,
            min_workers=min_workers,
        )


def test_parameter_servers_have_no_elastic_meeting():
    cluster = Cluster(cluster_of(2, ps=1), "worker", 0, "test")
    with pytest.raises(UserError, match="without parameter servers"):
        meet(cluster, jobs=["worker", "ps"], facts={}, min_workers=1)


def test_what_is_left_of_a_cluster_knows_what_it_was():
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"]}
    given = Cluster(jobs, "worker", 2, "test")
    left = given.among(["worker 0", "worker 2"])
    assert left.jobs == {"worker": ["b:1", "d:1"]}
    assert left.name == "worker 1"
    assert left.given_name("worker 1") == "worker 2"
    assert left.label("worker 1") == "worker 2 (d:1)"
    assert left.absent() == [("chief 0", "a:1"), ("worker 1", "c:1")]
    assert left.describe() == {
        "source": "test",
        "task": "worker 1",
        "jobs": left.jobs,
        "given": {"task": "worker 2", "jobs": jobs},
    }
    assert given.among(["chief 0", "worker 0", "worker 1", "worker 2"]) is given
    assert given.absent() == []
    assert given.given_name("worker 2") == "worker 2"
