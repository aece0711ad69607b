"""The experiments as a user runs them: in processes of their own."""

import json
import os
import pathlib
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


def last_evaluation(tmp_path):
    text = pathlib.Path(tmp_path, "run", "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["split"] == "eval"][-1]


def test_digits_reach_97_percent(run, tmp_path):
    pytest.importorskip("sklearn")
    done = run("digits")
    assert done.returncode == 0, done.stderr
    found = last_evaluation(tmp_path)
    assert found["step"] == 1000
    assert found["accuracy"] >= 0.97
    assert (tmp_path / "run" / "export" / "model.keras").exists()
    assert any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.long
def test_mnist_reaches_97_percent(run, tmp_path, mnist_dir):
    done = run("mnist", f"--data_dir={mnist_dir}")
    assert done.returncode == 0, done.stderr
    assert last_evaluation(tmp_path)["accuracy"] >= 0.97


@pytest.mark.parametrize("name", ["mnist", "tpu_mnist"])
def test_mnist_checks_out(run, tmp_path, mnist_dir, name):
    done = run(
        name,
        f"--data_dir={mnist_dir}",
        "--mode=check",
        "--strategy=one_device",
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(
    any(pathlib.Path("/dev").glob("accel*")), reason="there is a TPU"
)
def test_tpu_mnist_asks_for_a_tpu(run, mnist_dir):
    done = run("tpu_mnist", f"--data_dir={mnist_dir}", TPU_NAME="local")
    assert done.returncode == 2
    assert "There is no TPU on this host" in done.stderr
    assert "Traceback" not in done.stderr


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
