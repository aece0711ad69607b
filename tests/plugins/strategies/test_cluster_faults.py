"""Peers that are missing, die or come back: real processes, real signals."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.conformance.running import Layout
from tests.conftest import ROOT


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

    def log(self, number):
        return (self._directory / f"{number}.log").read_text()

    def wait_for_step(self, number, step, seconds=120):
        deadline = time.monotonic() + seconds
        while f"step {step} " not in self.log(number):
            assert time.monotonic() < deadline, self.log(number)[-3000:]
            assert self.tasks[number].poll() is None, self.log(number)[-3000:]
            time.sleep(0.1)

    def kill(self, number):
        self.tasks[number].send_signal(signal.SIGKILL)
        self.tasks[number].wait()

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
    assert pair.tasks[survivor].wait(30) == 75
    assert f"lost worker {victim}" in pair.log(survivor)


def test_threads_do_not_grow_with_steps(cluster):
    pair = cluster("multi_worker_mirrored@2", "400", "0")
    pair.start(0, 1)
    for number, task in pair.tasks.items():
        assert task.wait(120) == 0, pair.log(number)[-3000:]
    threads = dict(re.findall(r"step (\d+) threads (\d+)", pair.log(0)))
    assert int(threads["400"]) < int(threads["50"]) + 20


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


def test_killed_parameter_server_is_named(cluster):
    group = cluster("parameter_server@1+1", "100000", "0.1")
    group.start(0, 1, 2)
    group.wait_for_step(0, 20)
    group.kill(2)
    assert group.tasks[0].wait(60) == 75
    assert "lost ps 0" in group.log(0)
    # The worker hears that its chief has ended.
    assert group.tasks[1].wait(30) == 75


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
    """Two workers, one update each between two meetings: at most one."""
    group = cluster("parameter_server@2+1", "40", "0", "max_staleness=1")
    group.start(0, 1, 2, 3)
    assert group.tasks[0].wait(120) == 0, group.log(0)[-3000:]
    found = re.findall(r"staleness ([\d.]+)", group.log(0))
    assert 0.0 <= float(found[-1]) <= 1.0
    assert "iterations 40" in group.log(0)
