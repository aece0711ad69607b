"""Runs the worker once for each strategy, and hands out its results."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT

STRATEGIES = [
    "default",
    "one_device",
    "mirrored:2",
    "mirrored:3",
    "mirrored:8",
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


@functools.cache
def run_worker(strategy, directory):
    name, _, devices = strategy.partition(":")
    command = [
        sys.executable,
        "-m",
        "tests.conformance.worker",
        f"--strategy={name}",
        f"--directory={directory}",
    ]
    if devices:
        command.append(f"--virtual_devices={devices}")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(os.path.join(directory, "results.npz")) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="session")
def conformance_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture
def results(request, conformance_dir):
    directory = conformance_dir / request.param.replace(":", "_")
    directory.mkdir(exist_ok=True)
    found = Results(run_worker(request.param, str(directory)))
    found.strategy = request.param
    found.directory = str(directory)
    return found
