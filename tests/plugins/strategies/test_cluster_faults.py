"""Peers that are missing, die or rejoin: real processes, real signals."""

import collections
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.conformance.running import Layout
from tests.conftest import ROOT
from tests.sets import long


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

    def worked_on(self, number):
        """The batches that a task trained on."""
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


@pytest.mark.long
def test_steps_count_once_if_a_worker_dies_in_the_middle_of_one(cluster):
    """The optimizer has counted that step by then; the chief has not."""
    group = cluster("parameter_server@1+1", "50", "0", "slow=yes")
    group.start(0, 1, 2)
    for step in (10, 20, 30):
        group.wait_for_step(0, step)
        # Past the start of the next one.
        time.sleep(0.5)
        group.kill(1)
        group.start(1)
    for task in group.tasks.values():
        assert task.wait(180) == 0, group.log(0)[-3000:]
    assert "were run twice" in group.log(0)
    assert "iterations 50" in group.log(0)


@pytest.mark.parametrize(
    "data", ["arrays", *map(long, ("dataset", "shuffled"))]
)
def test_an_epoch_is_one_pass_whoever_reads_it(cluster, data):
    """One worker is slower, so the other one does more of the steps."""
    group = cluster(
        "parameter_server@2+1", "160", "0", "tell=yes", f"data={data}"
    )
    group.start(0, 1, 2, 3)
    chief, _, slow, _ = group.tasks.values()
    group.wait_for_step(0, 10)
    while chief.poll() is None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            slow.send_signal(number)
            time.sleep(0.05)
    assert chief.wait() == 0, group.log(0)[-3000:]
    first, second = group.worked_on(1), group.worked_on(2)
    assert 0 < len(second) < len(first)
    numbers = " ".join(first + second).replace("[", "").replace("]", "")
    counts = collections.Counter(map(int, numbers.split()))
    assert counts == dict.fromkeys(range(640), 16)  # Epochs.


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("object", "The data is a tf.data.Dataset that this process has made"),
        ("python", "The data runs Python code"),
    ],
)
def test_data_of_this_process_alone_is_refused_before_a_step(
    cluster, data, said
):
    group = cluster("parameter_server@1+1", "10", "0", f"data={data}")
    group.start(0, 1, 2)
    assert group.tasks[0].wait(120) == 2, group.log(0)[-3000:]
    found = re.findall("^error: (.*)$", group.log(0), re.M)
    assert len(found) == 1
    assert said in found[0]
    assert "step 10" not in group.log(0)


def test_each_worker_has_its_own_batches_and_staleness_is_bounded(cluster):
    """Two concurrent workers would read while the other one applies.

    Either may be the quicker one to take steps, again and again; over so many
    host loops both are.
    """
    group = cluster(
        "parameter_server@2+1", "400", "0", "tell=yes", "max_staleness=0"
    )
    group.start(0, 1, 2, 3)
    assert group.tasks[0].wait(120) == 0, group.log(0)[-3000:]
    first, second = group.worked_on(1), group.worked_on(2)
    assert len(first) + len(second) == 400
    assert first
    assert second
    assert not set(first) & set(second)
    found = re.findall(r"staleness ([\d.]+)", group.log(0))
    assert float(found[-1]) == 0.0
    assert "iterations 400" in group.log(0)
