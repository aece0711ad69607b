"""The experiments as a user runs them: in processes of their own."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def run(root, tmp_path):
    def start(name, *arguments, **environment):
        command = [
            *(sys.executable, "-m", "trainer"),
            f"--gin_file=experiments/{name}.gin",
            f"--model_dir={tmp_path / 'run'}",
            *arguments,
        ]
        return subprocess.run(
            command,
            cwd=root,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return start


@pytest.mark.long
def test_mnist_without_a_network_says_what_to_do(run, tmp_path):
    nowhere = "http://127.0.0.1:9"
    done = run(
        "mnist", KERAS_HOME=str(tmp_path), https_proxy=nowhere, no_proxy=""
    )
    assert done.returncode == 2
    assert "MNIST cannot be downloaded" in done.stderr
    assert "--data_dir=" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
