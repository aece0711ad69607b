"""Runs the worker under a strategy, in as many processes as it takes."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from typing import NamedTuple

import numpy as np

# The suite runs from a checkout as tests.conformance, and installed as
# trainer_conformance: the worker is imported as this package was.
_HOME = pathlib.Path(__file__).resolve().parents[__package__.count(".") + 1]


class Layout(NamedTuple):
    """What `NAME[:DEVICES][@WORKERS[+SERVERS]]` asks for."""

    name: str
    devices: int
    workers: int
    servers: int

    @classmethod
    def parse(cls, text):
        match = re.fullmatch(r"(\w+)(?::(\d+))?(?:@(\d+)(?:\+(\d+))?)?", text)
        assert match, f"{text!r} is not NAME[:DEVICES][@WORKERS[+SERVERS]]"
        name, *numbers = match.groups()
        return cls(name, *(int(n or 0) for n in numbers))

    def tasks(self):
        """The environment of each process, the one that writes first."""
        if not self.workers:
            return [{}]
        ports = free_ports(self.workers + self.servers + 1)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        jobs = {"worker": addresses[: self.workers]}
        if self.servers:
            jobs["ps"] = addresses[self.workers : -1]
            jobs = {"chief": addresses[-1:], **jobs}
        return [
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": jobs, "task": {"type": job, "index": i}}
                )
            }
            for job in jobs
            for i in range(len(jobs[job]))
        ]


class Results(dict):
    """A worker's arrays, by `case.key`.

    Args:
        arrays: what it wrote.
        directory: where it wrote that, and its run directories.
    """

    def __init__(self, arrays, directory):
        super().__init__(arrays)
        self.directory = directory
        # What a reference comes to from the same start, by case.
        self.references = {}

    def case(self, name):
        """The arrays of one case, by key."""
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value
            for key, value in self.items()
            if key.startswith(prefix)
        }


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run(strategy, directory, *arguments, timeout=900):
    """Runs cases under a strategy, and returns what the chief wrote."""
    layout = Layout.parse(strategy)
    command = [sys.executable, "-m", f"{__package__}.worker"]
    command += [f"--strategy={layout.name}", f"--directory={directory}"]
    if layout.devices:
        command.append(f"--virtual_devices={layout.devices}")
    _run_tasks([*command, *arguments], layout.tasks(), directory, timeout)
    with np.load(os.path.join(directory, "results.npz")) as file:
        return Results({key: file[key] for key in file.files}, directory)


def _run_tasks(command, environments, directory, timeout):
    path = os.pathsep.join([str(_HOME), *sys.path])
    logs, running = [], []
    for i, environment in enumerate(environments):
        logs.append(os.path.join(directory, f"task{i}.log"))
        with open(logs[-1], "w") as log:
            running.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": path, **environment},
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        codes = [running[0].wait(timeout)]
        # Servers leave by themselves once the chief has ended.
        codes += [process.wait(60) for process in running[1:]]
    finally:
        for process in running:
            process.kill()
    for code, log in zip(codes, logs, strict=True):
        if code:
            with open(log) as file:
                raise AssertionError(f"{log}: {code}\n{file.read()[-4000:]}")
