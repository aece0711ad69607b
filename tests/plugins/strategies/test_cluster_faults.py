"""Peers that are missing, die or come back: real processes, real signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.conformance.running import Layout
from tests.conftest import ROOT
from tests.plugins.clusters.meetings import wait_for_port


class Cluster:
    """The tasks of a layout, each with a log file."""

    def __init__(self, layout, directory, *arguments):
        self._directory = directory
        self._arguments = arguments
        self._layout = Layout.parse(layout)
        self._environments = self._layout.tasks()
        self.tasks = {}

    def start(self, *numbers):
        for number in numbers:
            log = open(self._directory / f"{number}.log", "a")  # noqa: SIM115
            self.tasks[number] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.plugins.strategies.cluster_script",
                    self._layout.name,
                    *self._arguments,
                ],
                cwd=ROOT,
                env={**os.environ, **self._environments[number]},
                stdout=log,
                stderr=log,
            )
            log.close()

    def address(self, number):
        config = json.loads(self._environments[number]["TF_CONFIG"])
        task = config["task"]
        return config["cluster"][task["type"]][task["index"]]

    def log(self, number):
        return (self._directory / f"{number}.log").read_text()

    def wait_for_step(self, number, step, seconds=120):
        deadline = time.monotonic() + seconds
        while f"step {step} " not in self.log(number):
            assert time.monotonic() < deadline, self.log(number)[-3000:]
            assert self.tasks[number].poll() is None, self.log(number)[-3000:]
            time.sleep(0.1)

    def wait_until(self, happened, seconds=120):
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, self.log(0)[-3000:]
            assert self.tasks[0].poll() is None, self.log(0)[-3000:]
            time.sleep(0.1)

    def kill(self, number):
        self.tasks[number].send_signal(signal.SIGKILL)
        self.tasks[number].wait()

    def said(self, number, code, seconds=60):
        """Why a task ended; checks that it did so with an exit code."""
        found = self.tasks[number].wait(seconds)
        log = self.log(number)
        assert found == code, log[-3000:]
        return re.findall("^(?:start again|error): (.*)$", log, re.M)[-1]

    def worked_on(self, number):
        """Which batches a task trained on."""
        return re.findall("^worked on (.*)$", self.log(number), re.M)

    def end(self):
        for task in self.tasks.values():
            task.kill()
            task.wait()


@pytest.fixture
def cluster(tmp_path):
    made = []

    def make(layout, *arguments):
        made.append(Cluster(layout, tmp_path, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_missing_worker_is_named(cluster):
    pair = cluster("multi_worker_mirrored@2", "10", "0", "start_seconds=4")
    pair.start(0)
    assert pair.tasks[0].wait(40) == 75
    assert re.search(r"start again: .*worker 1", pair.log(0))


def test_missing_leader_is_named(cluster):
    pair = cluster("multi_worker_mirrored@2", "10", "0", "start_seconds=4")
    pair.start(1)
    assert pair.tasks[1].wait(40) == 75
    assert re.search(r"start again: .*worker 0", pair.log(1))


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_worker_is_named_by_the_survivor(cluster, victim):
    pair = cluster("multi_worker_mirrored@2", "100000", "0.1")
    pair.start(0, 1)
    survivor = 1 - victim
    pair.wait_for_step(survivor, 20)
    pair.kill(victim)
    said = pair.said(survivor, 75, seconds=30)
    assert re.fullmatch(rf"lost worker {victim} \(\S+\)", said)
    # It left in order: nothing had to end it.
    assert "most recent call first" not in pair.log(survivor)


@pytest.mark.parametrize(
    ("count", "victim"),
    [
        (2, 1),
        pytest.param(2, 0, marks=pytest.mark.long),
        pytest.param(3, 1, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_frozen_worker_is_named_by_all_others(cluster, count, victim):
    group = cluster(f"multi_worker_mirrored@{count}", "100000", "0.1")
    group.start(*range(count))
    others = set(range(count)) - {victim}
    for other in others:
        group.wait_for_step(other, 20)
    group.tasks[victim].send_signal(signal.SIGSTOP)
    since = time.monotonic()
    for other in others:
        said = group.said(other, 75, seconds=60)
        assert said.startswith(f"lost worker {victim} (")
    assert time.monotonic() - since < 30


@pytest.mark.long
def test_a_worker_that_freezes_in_the_meeting_is_named_by_all_others(cluster):
    trio = cluster("multi_worker_mirrored@3", "10", "0")
    trio.start(0, 2)
    for number in (0, 2):
        wait_for_port(trio.address(number)).close()
    # Until it has joined.
    time.sleep(3)
    trio.tasks[2].send_signal(signal.SIGSTOP)
    # With this one all are there.
    trio.start(1)
    for number in (0, 1):
        said = trio.said(number, 75, seconds=60)
        assert f"no line to worker 2 ({trio.address(2)})" in said


@pytest.mark.parametrize("broken", [0, 1])
def test_a_worker_that_fails_is_not_called_lost(cluster, broken):
    pair = cluster(
        "multi_worker_mirrored@2", "100000", "0", f"fail={broken}:20"
    )
    pair.start(0, 1)
    assert pair.tasks[broken].wait(120) == 1
    said = pair.said(1 - broken, 75)
    assert said.startswith(f"worker {broken} (")
    assert said.endswith("ended: RuntimeError: broken on purpose")


def test_workers_that_differ_all_say_so(cluster):
    trio = cluster("multi_worker_mirrored@3", "100", "0", "odd=2")
    trio.start(0, 1, 2)
    (said,) = {trio.said(number, 2, seconds=120) for number in range(3)}
    assert said.startswith("The tasks differ in color: ")
    assert '"even" on worker 0, worker 1; "odd" on worker 2' in said


@pytest.mark.long
def test_a_run_with_fewer_workers_ends_when_one_is_back(cluster):
    pair = cluster("multi_worker_mirrored@2", "100000", "0.1", "min_workers=1")
    pair.start(1)
    pair.wait_for_step(1, 20)
    pair.start(0)
    assert pair.said(1, 75).startswith("worker 0 is back")
    # The one that is back waits meanwhile.
    pair.start(1)
    pair.wait_for_step(0, 20)
    pair.wait_for_step(1, 20)


@pytest.mark.long
def test_threads_do_not_grow_with_steps(cluster):
    pair = cluster("multi_worker_mirrored@2", "400", "0")
    pair.start(0, 1)
    for number, task in pair.tasks.items():
        assert task.wait(120) == 0, pair.log(number)[-3000:]
    threads = dict(re.findall(r"step (\d+) threads (\d+)", pair.log(0)))
    assert int(threads["400"]) < int(threads["50"]) + 20


@pytest.mark.long
def test_other_workers_do_the_work_of_a_killed_one(cluster):
    """Chief, two workers, one server: worker 1 dies."""
    group = cluster("parameter_server@2+1", "300", "0.1")
    group.start(0, 1, 2, 3)
    group.wait_for_step(0, 40)
    group.kill(2)
    assert group.tasks[0].wait(180) == 0, group.log(0)[-3000:]
    assert "step 300 " in group.log(0)
    loss = float(re.search(r"loss ([\d.e-]+)", group.log(0)).group(1))
    assert loss < 1e-3


def test_a_killed_worker_comes_back_to_work(cluster):
    """Chief, two workers, one server: worker 1 dies twice."""
    group = cluster("parameter_server@2+1", "500", "0.1", "tell=yes")
    group.start(0, 1, 2, 3)
    group.wait_for_step(0, 40)
    for _ in range(2):
        group.kill(2)
        done = len(group.worked_on(2))
        group.start(2)
        group.wait_until(lambda d=done: len(group.worked_on(2)) > d + 5)
    for task in group.tasks.values():
        assert task.wait(180) == 0, group.log(0)[-3000:]
    # What the dead one had begun was done twice, and counts once.
    assert "iterations 500" in group.log(0)
    worked = len(group.worked_on(1)) + len(group.worked_on(2))
    assert 500 <= worked < 520


@pytest.mark.long
def test_steps_count_once_if_a_worker_dies_in_the_middle_of_one(cluster):
    """The optimizer has counted that step by then, and the chief not yet."""
    group = cluster("parameter_server@1+1", "50", "0", "slow=yes")
    group.start(0, 1, 2)
    for step in (10, 20, 30):
        group.wait_for_step(0, step)
        # Beyond the beginning of the next.
        time.sleep(0.5)
        group.kill(1)
        group.start(1)
    for task in group.tasks.values():
        assert task.wait(180) == 0, group.log(0)[-3000:]
    assert "were done twice" in group.log(0)
    assert "iterations 50" in group.log(0)


@pytest.mark.long
def test_the_run_waits_for_its_only_worker(cluster):
    group = cluster("parameter_server@1+1", "200", "0.1", "tell=yes")
    group.start(0, 1, 2)
    group.wait_for_step(0, 40)
    for seconds in (0.0, 2.0, 3.0):
        # The second and third kill may find it on its way back.
        time.sleep(seconds)
        group.kill(1)
        group.start(1)
    for task in group.tasks.values():
        assert task.wait(180) == 0, group.log(0)[-3000:]
    assert "iterations 200" in group.log(0)


def test_each_worker_has_batches_of_its_own(cluster):
    group = cluster("parameter_server@2+1", "40", "0", "tell=yes")
    group.start(0, 1, 2, 3)
    assert group.tasks[0].wait(120) == 0, group.log(0)[-3000:]
    first, second = group.worked_on(1), group.worked_on(2)
    assert len(first) + len(second) == 40
    assert first
    assert second
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGSTOP, marks=pytest.mark.long),
    ],
)
def test_a_lost_parameter_server_is_named_by_all(cluster, tmp_path, how):
    steps = ["300", "0.1", f"dir={tmp_path / 'run'}"]
    group = cluster("parameter_server@1+1", *steps)
    group.start(0, 1, 2)
    group.wait_for_step(0, 120)
    group.tasks[2].send_signal(how)
    since = time.monotonic()
    for number in (0, 1):
        said = group.said(number, 75, seconds=60)
        assert said.startswith("lost ps 0 (")
    assert time.monotonic() - since < 30
    group.kill(2)
    # All of them started again go on from the newest checkpoint.
    first_log = len(group.log(0))
    group.start(0, 1, 2)
    for task in group.tasks.values():
        assert task.wait(180) == 0, group.log(0)[-3000:]
    assert "step 50 " not in group.log(0)[first_log:]
    assert "iterations 300" in group.log(0)


def test_a_server_that_is_lost_before_it_serves_is_named(cluster):
    """TensorFlow waits for it while the chief connects, for ever."""
    group = cluster("parameter_server@1+1", "10", "0", "dies=ps0")
    group.start(0, 1, 2)
    assert group.tasks[2].wait(60) == -signal.SIGKILL
    since = time.monotonic()
    for number in (0, 1):
        said = group.said(number, 75, seconds=60)
        assert said.startswith("lost ps 0 (")
    assert time.monotonic() - since < 30


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_lost_before_it_serves_is_named(cluster, lost):
    """TensorFlow waits for it for an hour, with Python's lock held."""
    group = cluster("multi_worker_mirrored@2", "10", "0", f"dies=worker{lost}")
    group.start(0, 1)
    assert group.tasks[lost].wait(60) == -signal.SIGKILL
    since = time.monotonic()
    said = group.said(1 - lost, 75, seconds=60)
    assert said.startswith(f"lost worker {lost} (")
    assert time.monotonic() - since < 12


def test_evaluation_on_workers_equals_that_on_the_chief(cluster, tmp_path):
    losses = []
    for place in ("chief", "worker"):
        group = cluster(
            "parameter_server@1+1", "20", "0", f"evaluate_on={place}"
        )
        group.start(0, 1, 2)
        assert group.tasks[0].wait(120) == 0, group.log(0)[-3000:]
        losses.append(re.findall(r"loss ([\d.e-]+)", group.log(0))[-1])
    assert losses[0] == losses[1]


def test_staleness_is_bounded(cluster):
    """Two workers at once would read weights while the other applies."""
    group = cluster("parameter_server@2+1", "40", "0", "max_staleness=0")
    group.start(0, 1, 2, 3)
    assert group.tasks[0].wait(120) == 0, group.log(0)[-3000:]
    found = re.findall(r"staleness ([\d.]+)", group.log(0))
    assert float(found[-1]) == 0.0
    assert "iterations 40" in group.log(0)
