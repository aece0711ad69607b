"""Runs the worker once for each strategy, and hands out its results."""

import functools
import json
import os
import re
import socket
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from tests.conftest import ROOT

STRATEGIES = [
    "default",
    "one_device",
    "mirrored:2",
    "mirrored:3",
    "mirrored:8",
    "central_storage:2",
    "multi_worker_mirrored@2",
    "parameter_server@1+2",
]


def pytest_generate_tests(metafunc):
    if "results" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--conformance-strategy")
        metafunc.parametrize("results", chosen or STRATEGIES, indirect=True)


class Results(dict):
    """A worker's arrays, by `case.key`; `strategy` says whose."""

    def case(self, name):
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value
            for key, value in self.items()
            if key.startswith(prefix)
        }


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


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_cluster(layout, arguments, directory, timeout=900):
    """Runs `tests.conformance.worker` in every task of a layout."""
    command = [sys.executable, "-m", "tests.conformance.worker"]
    command += [f"--strategy={layout.name}", f"--directory={directory}"]
    if layout.devices:
        command.append(f"--virtual_devices={layout.devices}")
    logs, running = [], []
    for i, environment in enumerate(layout.tasks()):
        logs.append(os.path.join(directory, f"task{i}.log"))
        with open(logs[-1], "w") as log:
            running.append(
                subprocess.Popen(
                    [*command, *arguments],
                    cwd=ROOT,
                    env={**os.environ, **environment},
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


@functools.cache
def run_worker(strategy, directory):
    run_cluster(Layout.parse(strategy), [], directory)
    with np.load(os.path.join(directory, "results.npz")) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="session")
def conformance_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture
def results(request, conformance_dir):
    directory = conformance_dir / re.sub(r"\W", "_", request.param)
    directory.mkdir(exist_ok=True)
    found = Results(run_worker(request.param, str(directory)))
    found.strategy = request.param
    found.directory = str(directory)
    return found
