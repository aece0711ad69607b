"""Hosts of their own network on this machine, and training runs on them.

Each host is a network namespace with one address; a switch joins them, which
is a bridge in one more namespace. Nothing of it is seen from outside, and no
packet leaves it, so that parallel runs may use the same addresses.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

_PORT = 2222
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_IP = shutil.which("ip", path=_PATH)


def why_not():
    """Why namespaces cannot be created here; `None` if they can."""
    if _IP is None:
        return "no ip: install iproute2"
    name = f"probe-{os.getpid()}-{secrets.token_hex(3)}"
    # A namespace alone is not enough: a container may forbid bridges.
    commands = (
        ["netns", "add", name],
        ["-n", name, "link", "add", "switch", "type", "bridge"],
        ["-n", name, "link", "add", "one", "type", "veth", "peer", "other"],
    )
    try:
        for command in commands:
            done = _run(command)
            if done.returncode:
                return f"ip {' '.join(command)}: {done.stderr.strip()}"
    finally:
        _run(["netns", "del", name])
    return None


class Hosts:
    """Namespaces joined by a switch; leaving the context removes them.

    Host `i` has the address `10.77.0.{i + 1}` and a loopback of its own.

    Args:
        count: how many hosts there are.

    Attributes:
        addresses: the address of each, without a port.
    """

    def __init__(self, count):
        prefix = f"hosts-{os.getpid()}-{secrets.token_hex(3)}"
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self._names = [f"{prefix}-{i}" for i in range(count)]
        self._switch = f"{prefix}-switch"
        self._made = []

    def __enter__(self):
        try:
            self._make_switch()
            for i in range(len(self._names)):
                self._make_host(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The links disappear with their namespaces.
        for name in reversed(self._made):
            _run(["netns", "del", name])
        self._made = []

    def command(self, host, *arguments):
        """The command line that runs a command on a host.

        It replaces itself by the command: a signal to the one reaches the
        other.
        """
        return [_IP, "netns", "exec", self._names[host], *arguments]

    def cut_off(self, host):
        """Unplugs a host: packets vanish without any error."""
        self._do("-n", self._switch, "link", "set", f"port{host}", "down")

    def join(self, host):
        """Plugs a host in again."""
        self._do("-n", self._switch, "link", "set", f"port{host}", "up")

    def _make_switch(self):
        self._make_namespace(self._switch)
        self._do("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        self._do("-n", self._switch, "link", "set", "bridge", "up")

    def _make_host(self, i):
        name, port = self._names[i], f"port{i}"
        self._make_namespace(name)
        self._do(
            *("-n", self._switch, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        self._do("-n", self._switch, "link", "set", port, "master", "bridge")
        self._do(
            *("-n", name, "addr", "add", f"{self.addresses[i]}/24"),
            *("dev", "eth0"),
        )
        self._do("-n", name, "link", "set", "lo", "up")
        self._do("-n", name, "link", "set", "eth0", "up")
        self.join(i)

    def _make_namespace(self, name):
        self._do("netns", "add", name)
        self._made.append(name)

    def _do(self, *arguments):
        done = _run(arguments)
        assert done.returncode == 0, f"ip {arguments}: {done.stderr}"


def _run(arguments):
    return subprocess.run(
        [_IP, *arguments], capture_output=True, text=True, timeout=30
    )


class Run:
    """One training run: a process for each task, each on its host.

    Args:
        hosts: where they run.
        folder: where the run directory and the log files go.
        placed: job and host of each task.

    Attributes:
        jobs: job name to the `host:port` of its tasks.
        processes: what runs, by the task's name.
    """

    def __init__(self, hosts, folder, placed):
        self._hosts = hosts
        self._folder = folder
        self._tasks = {}
        self.model_dir = folder / "run"
        self.jobs = {}
        self.processes = {}
        for job, host in placed:
            addresses = self.jobs.setdefault(job, [])
            # Several tasks of one host have a port each.
            port = _PORT + list(self._tasks.values()).count(host)
            self._tasks[f"{job} {len(addresses)}"] = host
            addresses.append(f"{hosts.addresses[host]}:{port}")

    def start(self, *arguments, only=None):
        """Starts every task, or only one, with some more flags."""
        for name, host in self._tasks.items():
            if only not in (None, name):
                continue
            environ = {"TF_CONFIG": self._cluster(*name.split())}
            command = [*training(self.model_dir), *arguments]
            with open(self._log(name), "w") as log:
                self.processes[name] = subprocess.Popen(
                    self._hosts.command(host, *command),
                    cwd=ROOT,
                    env={**os.environ, **environ},
                    stdout=log,
                    stderr=log,
                )

    def address(self, name):
        """A task's `host:port`."""
        job, index = name.split()
        return self.jobs[job][int(index)]

    def log(self, name):
        """The output of a task."""
        return self._log(name).read_text()

    def wait(self, name, seconds=180):
        """A task's exit code."""
        try:
            return self.processes[name].wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} hangs:\n{self.log(name)[-4000:]}")

    def wait_for_all(self):
        """Waits until all tasks have ended well."""
        for name in self.processes:
            assert self.wait(name) == 0, f"{name}\n{self.log(name)[-4000:]}"

    def wait_until(self, name, happened, seconds=120):
        """Waits for a condition while a task runs."""
        deadline = time.monotonic() + seconds
        while not happened():
            text = self.log(name)[-3000:]
            assert time.monotonic() < deadline, text
            assert self.processes[name].poll() is None, text
            time.sleep(0.05)

    def start_again(self, name):
        """A task's message after `start again:`."""
        found = re.findall("^start again: (.*)$", self.log(name), re.MULTILINE)
        assert len(found) == 1, self.log(name)[-3000:]
        return found[0]

    def metrics(self):
        """The lines of `metrics.jsonl`."""
        return metrics(self.model_dir)

    def end(self):
        """Kills the tasks that are still running."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _log(self, name):
        return self._folder / f"{name.replace(' ', '')}.log"

    def _cluster(self, job, index):
        task = {"type": job, "index": int(index)}
        return json.dumps({"cluster": self.jobs, "task": task})


def training(model_dir):
    """The command line of a short training."""
    return [
        *(sys.executable, "-m", "trainer"),
        "--gin_file=experiments/digits.gin",
        f"--model_dir={model_dir}",
        "--train_steps=60",
        "--steps_per_loop=10",
        "--gin.run.log_every=10",
        "--gin.run.eval_every=30",
    ]


def metrics(model_dir):
    """The lines of a run's `metrics.jsonl`."""
    path = model_dir / "metrics.jsonl"
    if not path.exists():
        return []
    # A line that is still being written has no line break yet.
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
