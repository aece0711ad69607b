"""Runs across three hosts, each with a network and an address of its own."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from tests.conftest import ROOT
from tests.plugins.strategies.network_hosts import Hosts, why_not

# Asked only where these tests are wanted: the answer takes some processes.
pytestmark = pytest.mark.long
PORT = 2222
STEPS = 60
# What two runs of the same mathematics may differ in.
SPEEDS = re.compile("per_second|seconds|time|staleness")


@pytest.fixture(scope="module")
def hosts():
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    pytest.importorskip("sklearn")
    with Hosts(3) as made:
        yield made


@pytest.fixture
def run(hosts, tmp_path):
    made = []

    def make(placed, **options):
        made.append(Run(hosts, tmp_path, placed, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()
    for host in range(3):
        hosts.join(host)


class Run:
    """One training run: a process for each task, each on its host.

    Args:
        placed: job and host of each task, the chief or worker 0 first.
        by_flags: whether the tasks learn of each other by flags.
    """

    def __init__(self, hosts, folder, placed, *, by_flags=False):
        self._hosts = hosts
        self._folder = folder
        self._by_flags = by_flags
        self.model_dir = folder / "run"
        self.jobs = {}
        self._tasks = {}
        self.processes = {}
        for job, host in placed:
            addresses = self.jobs.setdefault(job, [])
            self._tasks[f"{job} {len(addresses)}"] = host
            # Several tasks of one host have a port each.
            port = PORT + list(self._tasks.values()).count(host) - 1
            addresses.append(f"{hosts.addresses[host]}:{port}")

    def start(self, *arguments, without=()):
        for name, host in self._tasks.items():
            if name in without:
                continue
            flags, environ = self._cluster(*name.split())
            command = self._hosts.command(host, *trainer(self.model_dir))
            with open(self._log(name), "w") as log:
                self.processes[name] = subprocess.Popen(
                    [*command, *flags, *arguments],
                    cwd=ROOT,
                    env={**os.environ, **environ},
                    stdout=log,
                    stderr=log,
                )

    def _cluster(self, job, index):
        if not self._by_flags:
            task = {"type": job, "index": int(index)}
            config = {"cluster": self.jobs, "task": task}
            return [], {"TF_CONFIG": json.dumps(config)}
        workers = [*self.jobs.get("chief", []), *self.jobs["worker"]]
        # With servers, the first of the worker hosts is the chief.
        if "chief" in self.jobs and job == "worker":
            index = int(index) + 1
        flags = [f"--worker_hosts={','.join(workers)}"]
        if "ps" in self.jobs:
            flags.append(f"--ps_hosts={','.join(self.jobs['ps'])}")
        return [*flags, f"--task_type={job}", f"--task_index={index}"], {}

    def _log(self, name):
        return self._folder / f"{name.replace(' ', '')}.log"

    def address(self, name):
        job, index = name.split()
        return self.jobs[job][int(index)]

    def log(self, name):
        return self._log(name).read_text()

    def wait(self, name, seconds=180):
        """A task's exit code."""
        try:
            return self.processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} hangs:\n{self.log(name)[-4000:]}")

    def wait_for_all(self):
        for name in self.processes:
            assert self.wait(name) == 0, f"{name}\n{self.log(name)[-4000:]}"

    def wait_for(self, name, happened, seconds=120):
        deadline = time.monotonic() + seconds
        while not happened():
            text = self.log(name)[-3000:]
            assert time.monotonic() < deadline, text
            assert self.processes[name].poll() is None, text
            time.sleep(0.05)

    def last_words(self, name):
        """What it says after `start again:`."""
        found = re.findall("^start again: (.*)$", self.log(name), re.MULTILINE)
        assert len(found) == 1, self.log(name)[-3000:]
        return found[0].split(" (No route to host)")[0]

    def metrics(self):
        return metrics(self.model_dir)

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


def trainer(model_dir, steps=STEPS):
    return [
        *(sys.executable, "-m", "trainer"),
        "--gin_file=experiments/digits.gin",
        f"--model_dir={model_dir}",
        f"--train_steps={steps}",
        "--steps_per_loop=10",
        "--gin.run.log_every=10",
        "--gin.run.eval_every=30",
    ]


def metrics(model_dir):
    path = model_dir / "metrics.jsonl"
    if not path.exists():
        return []
    # A line that is being written has no end yet.
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def without_speed(lines):
    return [
        {key: value for key, value in line.items() if not SPEEDS.search(key)}
        for line in lines
    ]


def updates(model_dir):
    """How often the optimizer of the newest checkpoint has been applied."""
    folder = max((model_dir / "checkpoints").iterdir())
    state = json.loads((folder / "state.json").read_text())
    print(state)
    reader = tf.train.load_checkpoint(str(folder / "arrays"))
    return reader.get_tensor("optimizer/optimizer/0000")


def values(line):
    return {key: value for key, value in line.items() if key != "split"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The same training in one process."""
    model_dir = tmp_path_factory.mktemp("reference") / "run"
    flags = ["--strategy=mirrored", "--virtual_devices=3"]
    done = subprocess.run(
        [*trainer(model_dir), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return without_speed(metrics(model_dir))


WORKERS = [("worker", 0), ("worker", 1), ("worker", 2)]
SERVERS = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 2)]
ENDLESS = ["--train_steps=1000000", "--gin.run.eval_every=1000000"]
HOW = pytest.mark.parametrize(
    "by_flags", [False, True], ids=["TF_CONFIG", "flags"]
)


@HOW
def test_three_hosts_train_as_one_process_does(run, reference, by_flags):
    group = run(WORKERS, by_flags=by_flags)
    group.start("--strategy=multi_worker_mirrored")
    group.wait_for_all()
    found = without_speed(group.metrics())
    assert [(line["step"], line["split"]) for line in found] == [
        (line["step"], line["split"]) for line in reference
    ]
    assert found[-1]["step"] == STEPS
    assert {line["split"] for line in found} == {"train", "eval"}
    for line, expected in zip(found, reference, strict=True):
        assert values(line) == pytest.approx(values(expected), rel=1e-5)
    record = json.loads((group.model_dir / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["cluster"]["cluster"]["jobs"] == group.jobs


@HOW
def test_parameter_server_on_three_hosts(run, by_flags):
    group = run(SERVERS, by_flags=by_flags)
    group.start("--strategy=parameter_server")
    group.wait_for_all()
    found = group.metrics()
    steps = [line["step"] for line in found if line["split"] == "train"]
    assert steps[-1] == STEPS
    assert updates(group.model_dir) == STEPS
    losses = [line["loss"] for line in found if line["split"] == "eval"]
    assert losses[-1] < losses[0]
    record = json.loads((group.model_dir / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["cluster"]["cluster"]["jobs"] == group.jobs


def test_a_host_that_is_cut_off_before_the_start_is_named(run, hosts):
    limit = 8.0
    group = run(WORKERS)
    hosts.cut_off(2)
    group.start(
        "--strategy=multi_worker_mirrored",
        f"--gin.MultiWorkerMirrored.start_seconds={limit}",
    )
    since = {}
    for name in group.processes:
        # The last that it says before it waits.
        group.wait_for(name, lambda name=name: "model_dir:" in group.log(name))
        since[name] = time.monotonic()
    for name in group.processes:
        assert group.wait(name, 60) == 75, group.log(name)[-3000:]
        # What is above the limit is the model's start and Python's end.
        assert time.monotonic() - since[name] < limit + 12
    missing = f"peers missing after {limit:g} s: "
    assert {name: group.last_words(name) for name in group.processes} == {
        "worker 0": f"{missing}worker 2 ({group.address('worker 2')})",
        "worker 1": f"{missing}worker 2 ({group.address('worker 2')})",
        "worker 2": f"{missing}worker 0 ({group.address('worker 0')})",
    }


@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_that_is_cut_off_in_the_middle_is_named(run, hosts, victim):
    group = run(WORKERS)
    group.start("--strategy=multi_worker_mirrored", *ENDLESS)
    group.wait_for("worker 0", lambda: len(group.metrics()) >= 3)
    hosts.cut_off(victim)
    deadline = time.monotonic() + 30
    for name in group.processes:
        left = deadline - time.monotonic()
        assert group.wait(name, left) == 75, group.log(name)[-3000:]
    lost = f"worker {victim}"
    for name in set(group.processes) - {lost}:
        said = group.last_words(name)
        assert said == f"lost {lost} ({group.address(lost)})"
    # The one that is alone cannot know that it is the one.
    assert group.last_words(lost).startswith("lost worker")


@pytest.mark.parametrize("victim", [1, 2])
def test_ps_cut(run, hosts, victim):
    group = run(SERVERS)
    group.start("--strategy=parameter_server", *ENDLESS)
    group.wait_for("chief 0", lambda: len(group.metrics()) >= 3)
    hosts.cut_off(victim)
    since = time.monotonic()
    n = len(group.metrics())
    while time.monotonic() - since < 90:
        print(int(time.monotonic() - since), {k: p.poll() for k, p in group.processes.items()}, len(group.metrics()) - n)
        time.sleep(5)
    for name in group.processes:
        print(name, group.log(name)[-1500:])
    assert 0
