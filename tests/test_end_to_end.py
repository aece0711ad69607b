"""Runs of `python -m trainer`, as a user starts them."""

import json
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.helpers import read_lines

_TIMEOUT = 300  # Seconds; a run here takes some ten of them.


def command(*arguments):
    return [sys.executable, "-m", "trainer", *map(str, arguments)]


def run(*arguments, cwd):
    """Runs one command line to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )


def assert_refused(done, *words):
    """Exit code 2, one to three lines on stderr, and no traceback."""
    assert done.returncode == 2, done.stderr[-4000:]
    lines = done.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 3, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.fixture(scope="module")
def digits(root, tmp_path_factory):
    """A finished run of the experiment that the README starts with."""
    folder = tmp_path_factory.mktemp("digits")
    done = run(
        f"--gin_file={root}/experiments/digits.gin",
        "--model_dir=run",
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "run"


def digits_again(root, model_dir, *arguments):
    return run(
        f"--gin_file={root}/experiments/digits.gin",
        f"--model_dir={model_dir}",
        *arguments,
        cwd=model_dir.parent,
    )


def last_evaluation(model_dir):
    lines = read_lines(model_dir / "metrics.jsonl")
    return [line for line in lines if line["split"] == "eval"][-1]


def test_digits_reaches_its_accuracy(digits):
    assert last_evaluation(digits)["accuracy"] >= 0.97


def hyperparameters(model_dir):
    """What TensorBoard's HPARAMS tab shows of a run."""
    from tensorboard.backend.event_processing import plugin_event_accumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    found = plugin_event_accumulator.EventAccumulator(str(model_dir / "eval"))
    tag = "_hparams_/session_start_info"
    content = found.Reload().SummaryMetadata(tag).plugin_data.content
    message = plugin_data_pb2.HParamsPluginData.FromString(content)
    return {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in message.session_start_info.hparams.items()
    }


def test_run_directory_keeps_the_contract(digits):
    assert {path.name for path in digits.iterdir()} == {
        "config.gin",
        "operative_config.gin",
        "run.json",
        "metrics.jsonl",
        "checkpoints",
        "train",
        "eval",
        "export",
    }
    record = json.loads((digits / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["start"] <= record["end"]
    assert record["restarts"] == 0
    assert record["data_resume"] == "seek"
    assert record["command"].startswith("python -m trainer --gin_file=")
    assert {"python", "tensorflow", "keras"} <= set(record["versions"])
    assert {"git", "strategy", "devices", "cluster", "hosts"} <= set(record)
    for name in ("config.gin", "operative_config.gin"):
        assert "run.train_steps = 1000" in (digits / name).read_text()
    lines = read_lines(digits / "metrics.jsonl")
    for line in lines:
        expected = {"step", "split", "loss", "accuracy"}
        if line["split"] == "train":
            expected |= {"examples_per_second", "learning_rate"}
        # The last is there because the run ends.
        assert expected == set(line) - {"final"}
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert steps == list(range(100, 1001, 100))
    assert hyperparameters(digits) == {
        "batch_size": 64,
        "learning_rate": 0.002,
        "train_steps": 1000,
        "losses.SparseCategoricalCrossentropy.from_logits": True,
    }
    for split in ("train", "eval"):
        (events,) = (digits / split).iterdir()
        assert events.stat().st_size > 1000


def test_exports_predict_what_was_measured(digits):
    import keras
    import tensorflow as tf

    from trainer_experiments.digits import digits as load

    examples = load("eval")
    x, y = examples.gather(tf.range(examples.size, dtype=tf.int64))
    model = keras.models.load_model(digits / "export" / "model.keras")
    served = tf.saved_model.load(str(digits / "export" / "saved_model"))
    logits = model(x).numpy()
    np.testing.assert_allclose(served.serve(x), logits, atol=1e-6)
    accuracy = np.mean(logits.argmax(1) == y.numpy())
    assert accuracy == pytest.approx(last_evaluation(digits)["accuracy"])


def test_eval_mode_measures_the_same(root, digits):
    done = digits_again(root, digits, "--mode=eval")
    assert done.returncode == 0, done.stderr[-4000:]
    printed = dict(
        line.split(": ") for line in done.stdout.splitlines() if ": " in line
    )
    for name in ("loss", "accuracy"):
        expected = last_evaluation(digits)[name]
        assert float(printed[name]) == pytest.approx(expected, rel=1e-4)


def test_a_finished_run_has_nothing_left_to_do(root, digits, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(digits, copy)
    done = digits_again(root, copy)
    assert done.returncode == 0, done.stderr[-4000:]
    before, after = digits / "metrics.jsonl", copy / "metrics.jsonl"
    assert after.read_text() == before.read_text()
    assert json.loads((copy / "run.json").read_text())["restarts"] == 1


# Resuming.


# MNIST.


@pytest.mark.skipif(
    any(pathlib.Path("/dev").glob("accel*")), reason="there is a TPU"
)
def test_tpu_experiment_says_how_to_run_here(root, tmp_path):
    begin = time.monotonic()
    done = run(f"--gin_file={root}/experiments/tpu_mnist.gin", cwd=tmp_path)
    assert_refused(
        done,
        "There is no TPU on this host",
        "--strategy=mirrored --virtual_devices=4",
    )
    # TensorFlow would look for a TPU for minutes. It takes 4 s, or longer on
    # a busy machine.
    assert time.monotonic() - begin < 60


@pytest.mark.long
def test_mnist_reaches_its_accuracy(root, mnist_dir, tmp_path):
    done = run(
        f"--gin_file={root}/experiments/mnist.gin",
        f"--data_dir={mnist_dir}",
        "--model_dir=run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert last_evaluation(tmp_path / "run")["accuracy"] >= 0.97
