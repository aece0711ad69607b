"""Real processes that take part in a rendezvous, for tests."""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import time

TASK = pathlib.Path(__file__).with_name("rendezvous_task.py")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def cluster_of(workers, **jobs):
    ports = iter(free_ports(workers + sum(jobs.values())))
    counts = {**jobs, "worker": workers}
    return {
        job: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
        for job, count in counts.items()
    }


class Task:
    """One task of a rendezvous; see `rendezvous_task.py` for its options."""

    started = []

    def __init__(self, jobs, index, job="worker", **given):
        given |= {"jobs": jobs, "job": job, "index": index}
        self.address = jobs[job][index] if job in jobs else ""
        self.process = subprocess.Popen(
            [sys.executable, str(TASK), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(self.process)

    def wait_until_it_waits(self):
        """Blocks until it listens on its port."""
        wait_for_port(self.address).close()
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()

    def result(self):
        """Exit code, message, seconds."""
        out, err = self.process.communicate(timeout=120)
        assert out, err
        code, text, seconds = json.loads(out.splitlines()[-1])
        assert code == self.process.returncode
        return code, text, seconds


@contextlib.contextmanager
def tasks_end():
    """Ends all tasks that were started inside, and only those."""
    before, Task.started = Task.started, []
    try:
        yield
    finally:
        while Task.started:
            process = Task.started.pop()
            process.kill()
            process.communicate()
        Task.started = before


def open_gates(tasks):
    """Releases tasks with a gate into their rendezvous, all at once."""
    for task in tasks:
        assert task.process.stdout.readline() == "ready\n"
    for task in tasks:
        task.process.stdin.write("\n")
        task.process.stdin.flush()
    return tasks


def wait_for_port(address, seconds=60):
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return socket.create_connection((host, int(port)), timeout=1)
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {address}")
