import itertools
import json
import signal
import time

import pytest

from tests.plugins.control_plane.rendezvous_tasks import (
    Task,
    cluster_of,
    open_gates,
    tasks_end,
    wait_for_port,
)
from trainer import UserError
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane.rendezvous import meet

# Longer than a busy machine takes to start a task.
LONG = 60.0


def workers(jobs, indices):
    return [jobs["worker"][index] for index in indices]


def test_a_full_cluster_starts_at_once():
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


def test_any_order_of_arrival_ends_in_one_cluster():
    # Less than it takes to notice that a leader is silent.
    given = {"min_workers": 2, "settle": LONG, "timeout": 12, "gate": True}
    groups = []
    for order in itertools.permutations(range(3)):
        jobs = cluster_of(3)
        groups.append((order, [Task(jobs, i, **given) for i in order]))
    for turn in range(3):
        for _, tasks in groups:
            open_gates([tasks[turn]])
        if turn < 2:
            for _, tasks in groups:
                tasks[turn].wait_until_it_waits()
            # Until each has found the current leader.
            time.sleep(0.5)
    for order, tasks in groups:
        found = [task.result()[:2] for task in tasks]
        assert found == [(0, "met")] * 3, order


class ElasticTasks:
    """Some workers of an elastic cluster, each held before the rendezvous."""

    def __init__(self, jobs, order, **given):
        given = {"min_workers": 2, "settle": 2, "timeout": LONG} | given
        self.order = order
        self.tasks = {i: Task(jobs, i, gate=True, **given) for i in order}
        left = {"worker": workers(jobs, sorted(order))}
        if "evaluator" in jobs:
            left["evaluator"] = jobs["evaluator"]
        self.expected = [
            (0, [f"worker {rank}", left]) for rank in range(len(order))
        ]

    def open(self, *indices):
        open_gates([self.tasks[index] for index in indices])

    def end(self):
        found = [self.tasks[i].result()[:2] for i in sorted(self.order)]
        assert found == self.expected, self.order


def test_the_tasks_that_are_present_form_a_cluster():
    groups = [
        ElasticTasks(cluster_of(4), there)
        for there in [(0, 1, 2), (0, 2, 3), (1, 2, 3), (0, 3), (2, 3), (1, 3)]
    ]
    without_their_chief = cluster_of(2, chief=1, evaluator=1)
    groups.append(ElasticTasks(without_their_chief, (0, 1)))
    one_is_enough = ElasticTasks(cluster_of(2), (1,), min_workers=1, settle=0.5)
    # Late tasks are waited for as long as new ones keep joining.
    late = [
        ElasticTasks(cluster_of(4), order) for order in ((1, 3, 0), (1, 3, 2))
    ]
    for group in (*groups, one_is_enough):
        group.open(*group.order)
    for number in range(3):
        for group in late:
            group.open(group.order[number])
        if number < 2:
            # Two of these are longer than the settle time.
            time.sleep(1.2)
    for group in (*groups, one_is_enough, *late):
        group.end()


def test_too_few_are_not_enough_and_the_missing_are_named():
    jobs = cluster_of(4)
    given = {"min_workers": 3, "settle": 0.1, "timeout": 1.2, "gate": True}
    for task in open_gates([Task(jobs, i, **given) for i in (1, 3)]):
        code, text, _ = task.result()
        assert code == 75
        assert text == (
            f"peers missing after 1.2 s: worker 0 ({jobs['worker'][0]}), "
            f"worker 2 ({jobs['worker'][2]}); min_workers is 3"
        )


def lose_the_leader(how):
    """Three workers that lose their leader."""
    jobs = cluster_of(4)
    given = {"min_workers": 3, "settle": 0.1, "silence": 5}
    leader = Task(jobs, 0, timeout=LONG, gate=True, **given)
    others = ElasticTasks(jobs, (1, 2, 3), **given)
    open_gates([leader])
    others.open(2)
    # Until it has joined the leader.
    time.sleep(1)
    leader.process.send_signal(how)
    others.open(1, 3)
    return others


@pytest.fixture(scope="module", autouse=True)
def silent_leader():
    """A leader that is stopped as the first test of this file begins.

    It takes a while to be noticed; meanwhile the other tests run.
    """
    with tasks_end():
        yield lose_the_leader(signal.SIGSTOP)


def test_when_the_leader_is_killed_the_next_one_leads():
    lose_the_leader(signal.SIGKILL).end()


def test_different_facts_end_an_elastic_rendezvous():
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


def test_other_programs_do_not_count():
    jobs = cluster_of(3)
    task = Task(jobs, 1, min_workers=2, settle=0.2, timeout=1.2, gate=True)
    open_gates([task])
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


def test_parameter_servers_have_no_elastic_rendezvous():
    cluster = Cluster(cluster_of(2, ps=1), "worker", 0, "test")
    with pytest.raises(UserError, match="without parameter servers"):
        meet(cluster, jobs=["worker", "ps"], facts={}, min_workers=1)


def test_the_remaining_cluster_knows_the_given_one():
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


# The last test: see `silent_leader`.
def test_when_the_leader_is_silent_the_next_one_leads(silent_leader):
    silent_leader.end()
