"""Real processes that join a coordinator, for tests."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from tests.conformance.running import free_ports

TASK = pathlib.Path(__file__).with_name("agent_task.py")
SECONDS = 60


class Cluster:
    """The tasks of a cluster on this machine.

    Args:
        workers: how many workers.
        hosts: give each task an address of its own; else all share one.
        secret: what the tasks share, if anything.
        options: of all agents.
        **counts: how many tasks the other jobs have.
    """

    def __init__(
        self, workers, *, hosts=False, secret="", options=None, **counts
    ):
        counts = {**counts, "worker": workers}
        ports = free_ports(sum(counts.values()) + 1)
        self.port = ports.pop()
        names = [(job, i) for job, n in counts.items() for i in range(n)]
        self.jobs = {job: [] for job in counts}
        for number, (job, _) in enumerate(names, 1):
            host = f"127.0.0.{number}" if hosts else "127.0.0.1"
            self.jobs[job].append(f"{host}:{ports.pop()}")
        self.options = {"start_seconds": 20.0} | (options or {})
        self.environ = {"TRAINER_COORDINATOR_PORT": str(self.port)}
        if secret:
            self.environ["TRAINER_COORDINATOR_SECRET"] = secret
        self.started = []

    def address(self, name):
        job, index = name.split()
        return self.jobs[job][int(index)]

    def label(self, name):
        """Such as `"worker 1 (127.0.0.1:5000)"`."""
        return f"{name} ({self.address(name)})"

    def start(self, *names, **options):
        """Starts tasks by name; returns them in this order."""
        found = [Task(self, name, dict(options)) for name in names]
        self.started += found
        return found

    def start_workers(self, *indices, **options):
        return self.start(*(f"worker {i}" for i in indices), **options)

    def connect(self, host="127.0.0.1"):
        """Connects to the coordinator's port as soon as it listens."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return socket.create_connection((host, self.port), timeout=20)
            time.sleep(0.02)
        raise AssertionError(f"nothing listens on {self.port}")

    def end(self):
        for task in self.started:
            with task.process:
                task.process.kill()


class Task:
    """One task; see `agent_task.py`."""

    def __init__(self, cluster, name, options):
        job, index = name.split()
        given = {
            "jobs": options.pop("given", cluster.jobs),
            "job": job,
            "index": int(index),
            "facts": options.pop("facts", {}),
            "options": {**cluster.options, **options},
        }
        self.process = subprocess.Popen(
            [sys.executable, str(TASK), json.dumps(given)],
            env={**os.environ, **cluster.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self):
        """Exit code, result or message, and seconds."""
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def started(self):
        """Waits until the run starts; the cluster as it has it."""
        code, found, _ = self.answer()
        assert code == 0, found
        return found

    def send(self, name, *arguments):
        self.process.stdin.write(f"{json.dumps([name, *arguments])}\n")
        self.process.stdin.flush()
        return self

    def call(self, name, *arguments):
        """Carries out a command; code and result."""
        return self.send(name, *arguments).answer()[:2]

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def close(self):
        """It leaves in order; returns its exit code."""
        self.process.stdin.close()
        return self.process.wait(SECONDS)

    def log(self):
        """What it wrote to stderr; it must have ended."""
        self.process.wait(SECONDS)
        return self.process.stderr.read()


def refusals(tasks):
    """The texts with which tasks end; each must call it a user's mistake."""
    answers = [task.answer() for task in tasks]
    assert [code for code, _, _ in answers] == [2] * len(tasks), answers
    return [text for _, text, _ in answers]


def until(happened, seconds=SECONDS):
    """Waits until something is so; returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
