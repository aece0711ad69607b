"""Elastic clusters, on one host and on several: addresses of loopback."""

import itertools
import signal
import time

import pytest

from tests.plugins.control_plane.tasks import refusals, until
from tests.sets import long
from trainer import UserError
from trainer.strategy.cluster.spec import Cluster as Spec
from trainer_plugins.control_plane.options import Options

# Longer than a busy machine takes to start a task.
LONG = 60.0
# The clusters of `tests/faults/test_elastic.py` are on one host.
HOSTS = pytest.mark.parametrize("hosts", [long(False), True])


def elastic(least, settle=1.0, start=LONG):
    return {
        "min_workers": least,
        "settle_seconds": settle,
        "start_seconds": start,
    }


def names(indices):
    return [f"worker {i}" for i in indices]


def shrunken(group, indices):
    """What each of the present tasks says on its start."""
    jobs = {"worker": [group.jobs["worker"][i] for i in sorted(indices)]}
    return {
        i: [f"worker {rank}", jobs] for rank, i in enumerate(sorted(indices))
    }


@HOSTS
def test_a_full_cluster_starts_at_once(cluster, hosts):
    group = cluster(3, hosts=hosts, chief=1, options=elastic(1, LONG))
    tasks = group.start("worker 2", "worker 0", "worker 1", "chief 0")
    for task in tasks:
        _, jobs = task.started()
        assert jobs == group.jobs


@pytest.mark.parametrize(
    "order", [(2, 1, 0), *map(long, [*itertools.permutations(range(3))][:-1])]
)
def test_any_order_of_arrival_ends_in_one_cluster(cluster, order):
    group = cluster(3, hosts=True, options=elastic(2, LONG))
    tasks = {}
    for index in order:
        (tasks[index],) = group.start_workers(index)
        # Until it has found the present coordinator.
        time.sleep(0.7)
    for index, task in tasks.items():
        assert task.started() == [f"worker {index}", group.jobs]


@HOSTS
def test_the_tasks_that_are_present_form_a_cluster(cluster, hosts):
    for there in ((0, 2, 3), (1, 3)):
        group = cluster(4, hosts=hosts, options=elastic(2, 3.0))
        tasks = dict(zip(there, group.start_workers(*there), strict=True))
        for index, expected in shrunken(group, there).items():
            assert tasks[index].started() == expected
        # Whoever is first now coordinates, and is named when it is lost.
        first, *others = tasks.values()
        first.kill()
        for task in others:
            _, text = task.call("wait")
            assert text == f"lost {group.label(f'worker {there[0]}')}"


@HOSTS
def test_too_few_are_not_enough_and_the_missing_are_named(cluster, hosts):
    group = cluster(4, hosts=hosts, options=elastic(3, 0.1, 3.0))
    for task in group.start_workers(1, 3):
        code, text, _ = task.answer()
        assert code == 75
        assert text.startswith("peers missing after 3 s: worker 0 (")
        assert group.label("worker 2") in text


@HOSTS
@pytest.mark.parametrize("how", [signal.SIGKILL, long(signal.SIGSTOP)])
def test_when_the_coordinator_is_lost_another_one_takes_over(
    cluster, hosts, how
):
    if how == signal.SIGSTOP and not hosts:
        pytest.skip("a frozen one keeps the port of their only host")
    options = elastic(3, 0.5) | {"silence_seconds": 3.0}
    group = cluster(4, hosts=hosts, options=options)
    (first,) = group.start_workers(0)
    (second,) = group.start_workers(2)
    time.sleep(1.5)
    first.kill(how)
    tasks = dict(zip((1, 3), group.start_workers(1, 3), strict=True))
    tasks[2] = second
    for index, expected in shrunken(group, (1, 2, 3)).items():
        assert tasks[index].started() == expected


def test_different_facts_end_the_start(cluster):
    """The message is in the cluster's order, and not in that of arrival."""
    group = cluster(3, options=elastic(2, LONG))
    later = group.start_workers(1, facts={"config": "a"})
    time.sleep(1.0)
    tasks = [
        *group.start_workers(0, facts={"config": "a"}),
        *later,
        *group.start_workers(2, facts={"config": "b"}),
    ]
    for text in refusals(tasks):
        assert 'differ in config: "a" on worker 0, worker 1; "b"' in text


def test_a_different_min_workers_is_a_difference(cluster):
    group = cluster(2, options=elastic(1, LONG))
    tasks = [
        *group.start_workers(0),
        *group.start_workers(1, min_workers=2),
    ]
    for text in refusals(tasks):
        assert "differ in min_workers: 1 on worker 0; 2 on worker 1" in text


@pytest.mark.parametrize("min_workers", [0, 3])
def test_an_impossible_number_is_refused(min_workers):
    with pytest.raises(UserError, match="has 2 workers. Choose 1 to 2"):
        Options(min_workers=min_workers).check(["worker 0", "worker 1"])


def test_parameter_servers_have_no_elastic_start():
    with pytest.raises(UserError, match="without parameter servers"):
        Options(min_workers=1).check(["worker 0", "ps 0"])


def leave_for(tasks, reason):
    """The tasks of a run see a request to leave, and leave in order."""
    for task in tasks:
        until(lambda t=task: t.call("state")[1][1] == reason)
    for task in tasks:
        task.send("barrier", {}, 20.0)
    for task in tasks:
        assert task.answer()[:2] == [0, None]
        assert task.close() == 0


@HOSTS
@pytest.mark.parametrize("away", [0, long(2)])
def test_a_run_ends_for_one_that_is_back_and_starts_with_all(
    cluster, hosts, away
):
    group = cluster(3, hosts=hosts, options=elastic(2))
    there = [i for i in range(3) if i != away]
    tasks = group.start_workers(*there)
    for task in tasks:
        task.started()
    (back,) = group.start_workers(away)
    leave_for(tasks, f"worker {away} is back")
    # It waits for the others meanwhile, although fewer would be enough: with
    # one that comes soon, it still does not start without the second.
    (one,) = group.start_workers(there[0])
    time.sleep(2.0)
    (two,) = group.start_workers(there[1])
    for task in (back, one, two):
        _, jobs = task.started()
        assert jobs == group.jobs


def test_one_that_is_back_and_differs_does_not_end_the_run(cluster):
    group = cluster(2, options=elastic(1, 0.5))
    (task,) = group.start_workers(0)
    task.started()
    (back,) = group.start_workers(1, facts={"code": "x"})
    code, text, _ = back.answer()
    assert code == 2
    assert "differ in code" in text
    assert task.call("state") == [0, [None, None, 0]]


def test_the_remaining_cluster_knows_the_given_one():
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"]}
    given = Spec(jobs, "worker", 2, "test")
    left = given.among(["worker 0", "worker 2"])
    assert left.jobs == {"worker": ["b:1", "d:1"]}
    assert left.name == "worker 1"
    assert left.describe() == {
        "source": "test",
        "task": "worker 1",
        "jobs": left.jobs,
        "given": {"task": "worker 2", "jobs": jobs},
    }
    assert given.among(["chief 0", "worker 0", "worker 1", "worker 2"]) is given
