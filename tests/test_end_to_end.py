"""Runs of `python -m trainer`, as a user starts them."""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.helpers import compare, read_lines
from tests.helpers import lines as lines_of
from trainer.checkpoint import storage

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


def test_run_directory_keeps_the_contract(digits):
    assert {path.name for path in digits.iterdir()} == {
        "config.gin",
        "operative_config.gin",
        "run.json",
        "metrics.jsonl",
        "checkpoints",
        "tensorboard",
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
        assert expected == set(line)
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert steps == list(range(100, 1001, 100))
    for split in ("train", "eval"):
        (events,) = (digits / "tensorboard" / split).iterdir()
        assert events.stat().st_size > 1000


def test_checkpoint_reads_with_tensorflow(digits):
    import tensorflow as tf

    newest = storage.listing(str(digits / "checkpoints"))[-1]
    reader = tf.train.load_checkpoint(os.path.join(newest, "arrays"))
    assert reader.get_tensor("step/0000") == 1000
    assert reader.get_tensor("model/0000").shape == (3, 3, 1, 32)


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


def test_export_mode_writes_the_exports_again(root, digits, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(digits, copy)
    shutil.rmtree(copy / "export")
    done = digits_again(root, copy, "--mode=export")
    assert done.returncode == 0, done.stderr[-4000:]
    assert (copy / "export" / "model.keras").is_file()
    assert (copy / "export" / "saved_model" / "saved_model.pb").is_file()


def test_a_finished_run_has_nothing_left_to_do(root, digits, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(digits, copy)
    done = digits_again(root, copy)
    assert done.returncode == 0, done.stderr[-4000:]
    before, after = digits / "metrics.jsonl", copy / "metrics.jsonl"
    assert after.read_text() == before.read_text()
    assert json.loads((copy / "run.json").read_text())["restarts"] == 1


# Resuming.

_SLOW = """
import gin
import keras


@gin.configurable
def dropout_net():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
"""
_CONFIG = """
import trainer_experiments.digits
import slow

Trainer.model = @dropout_net
Trainer.loss = @losses.SparseCategoricalCrossentropy()
losses.SparseCategoricalCrossentropy.from_logits = True
Trainer.metrics = [@metrics.SparseCategoricalAccuracy]
Trainer.data = @digits
Trainer.ema_momentum = 0.9
run.log_every = 1
run.eval_every = 11
run.steps_per_loop = 1
run.deterministic = True
Checkpoint.every = 11
run.callbacks = [@JsonLines(), @Checkpoint()]
"""


@pytest.fixture(scope="module")
def resuming(tmp_path_factory):
    """A folder with a config: shuffled data, dropout, averaged weights."""
    folder = tmp_path_factory.mktemp("resuming")
    (folder / "slow.py").write_text(_SLOW)
    (folder / "slow.gin").write_text(_CONFIG)
    return folder


def train_to(steps, folder, name):
    done = run(
        "--gin_file=slow.gin",
        f"--model_dir={name}",
        f"--train_steps={steps}",
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def unbroken(resuming):
    train_to(20, resuming, "unbroken")
    return resuming / "unbroken"


def assert_same_run(run_dir, expected):
    compare(run_dir, expected)
    found = storage.load_newest(str(run_dir / "checkpoints"))
    assert found.step == 20
    assert any(name.startswith("ema/") for name in found.arrays)


def test_unbroken_run_logs_every_step(unbroken):
    logged = [(line["step"], line["split"]) for line in lines_of(unbroken)]
    steps = [(step, "train") for step in range(1, 21)]
    evaluations = [(11, "eval"), (20, "eval")]
    assert sorted(logged) == sorted(steps + evaluations)


@pytest.mark.long
def test_longer_run_goes_on_as_if_it_had_been_one(resuming, unbroken):
    train_to(11, resuming, "longer")
    train_to(20, resuming, "longer")
    assert_same_run(resuming / "longer", unbroken)


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
def test_tpu_experiment_runs_on_virtual_devices(root, mnist_dir, tmp_path):
    done = run(
        f"--gin_file={root}/experiments/tpu_mnist.gin",
        "--strategy=mirrored",
        "--virtual_devices=4",
        f"--data_dir={mnist_dir}",
        "--train_steps=4",
        "--model_dir=run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert last_evaluation(tmp_path / "run")["step"] == 4
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["strategy"] == "mirrored"
    assert len(record["devices"]) == 4


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


@pytest.mark.parametrize("fault", ["missing", "corrupt"])
def test_bad_data_files_are_named(root, mnist_dir, tmp_path, fault):
    name = "train-images-idx3-ubyte.gz"
    data = tmp_path / "data"
    shutil.copytree(mnist_dir, data)
    data.chmod(0o755)
    (data / name).chmod(0o644)
    if fault == "missing":
        (data / name).unlink()
    else:
        pixels = gzip.decompress((data / name).read_bytes())
        (data / name).write_bytes(gzip.compress(pixels[:-1], 1))
    done = run(
        f"--gin_file={root}/experiments/mnist.gin",
        f"--data_dir={data}",
        "--model_dir=run",
        cwd=tmp_path,
    )
    assert_refused(done, "train-images-idx3-ubyte", str(data))
    assert not (tmp_path / "run").exists()
