"""The evaluator beside a training process, each a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.helpers import best_of, read_lines

_EXPERIMENT = """
import os
import signal
import time

import gin
import keras
import numpy as np

from trainer import Callback


@gin.configurable
def net():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )


@gin.configurable
def sums(split):
    x = np.random.default_rng(len(split)).random((24, 4), "float32")
    return x, x.sum(axis=1, keepdims=True)


@gin.configurable
class Together(Callback):
    # Waits for the evaluation of each checkpoint, and stops early.
    def on_train_batch_begin(self, batch, logs=None):
        step = self.run.step
        if step not in (2, 4):
            return
        path = os.path.join(self.run.model_dir, "metrics_evaluator.jsonl")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if os.path.exists(path):
                with open(path) as file:
                    if f'"step": {step},' in file.read():
                        return
            time.sleep(0.02)
        raise TimeoutError(f"the evaluator has not seen step {step}")

    def on_save(self, step, logs):
        if step == 6:
            self.run.stop("enough")


@gin.configurable
class KillAt(Callback):
    only_watches = True

    def on_log(self, step, split, logs):
        if os.environ.get("KILL_AT") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
"""
_CONFIG = """
import side_by_side

Trainer.model = @net
Trainer.loss = 'mean_squared_error'
Trainer.optimizer = @SGD
Trainer.learning_rate = 0.1
Trainer.data = @sums
Trainer.batch_size = 8
Trainer.ema_momentum = 0.5
run.train_steps = 1000
run.steps_per_loop = 2
run.eval_every = 2
run.eval_poll_seconds = 0.05
run.eval_timeout = '100s'
Checkpoint.every = 2
Checkpoint.keep_last = 1
run.callbacks = [@JsonLines(), @TensorBoard(), @Checkpoint(), @KillAt()]
"""


def start(folder, *arguments, **environ):
    command = [sys.executable, "-m", "trainer", "--gin_file=side.gin"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, code=0):
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, err[-4000:]
    if not code:
        assert not err
    return out


def printed(out):
    pairs = (line.split(": ") for line in out.splitlines() if ": " in line)
    return dict(pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished training run, with what its evaluator printed."""
    folder = tmp_path_factory.mktemp("side_by_side")
    (folder / "side_by_side.py").write_text(_EXPERIMENT)
    (folder / "side.gin").write_text(_CONFIG)
    evaluator = start(folder, "--model_dir=run", "--mode=continuous_eval")
    training = start(
        folder,
        "--model_dir=run",
        "--strategy=mirrored",
        "--virtual_devices=2",
        "--gin.run.callbacks=[@JsonLines(), @Checkpoint(), @Together()]",
    )
    finish(training)
    (folder / "printed").write_text(finish(evaluator))
    return folder


def evaluations(path):
    return [line for line in read_lines(path) if line["split"] == "eval"]


def test_it_measures_what_the_training_process_measures(folder):
    run = folder / "run"
    ours = evaluations(run / "metrics_evaluator.jsonl")
    theirs = evaluations(run / "metrics.jsonl")
    assert [line["step"] for line in ours] == [2, 4, 6]
    for mine, expected in zip(ours, theirs, strict=True):
        assert set(mine) == set(expected)
        assert mine["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    losses = {line["loss"]: line["step"] for line in ours}
    assert best_of(run)["step"] == losses[min(losses)]


def test_it_measures_what_eval_mode_measures(folder):
    out = finish(start(folder, "--model_dir=run", "--mode=eval"))
    mine = printed((folder / "printed").read_text())
    assert mine["step"] == "6"
    assert mine["loss"] == printed(out)["loss"]


def test_it_leaves_the_record_of_the_run_alone(folder):
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["strategy"] == "mirrored"
    assert record["restarts"] == 0
    config = (folder / "run" / "config.gin").read_text()
    assert "TensorBoard" not in config


@pytest.mark.long  # tests/faults/test_evaluator.py kills it at each point.
def test_a_killed_evaluator_goes_on_without_repeating(folder):
    run = folder / "killed"
    shutil.copytree(folder / "run" / "checkpoints", run / "checkpoints")
    arguments = ("--model_dir=killed", "--mode=continuous_eval")
    # After the line was written, before the record was.
    process = start(folder, *arguments, "--train_steps=6", KILL_AT="6")
    finish(process, -signal.SIGKILL)
    lines = (run / "metrics_evaluator.jsonl").read_text()
    assert not (run / "best" / "best.json").exists()
    with (run / "metrics_evaluator.jsonl").open("a") as file:
        file.write('{"step": 8, "spl')
    finish(start(folder, *arguments, "--train_steps=6"))
    assert (run / "metrics_evaluator.jsonl").read_text() == lines
    assert [line["step"] for line in map(json.loads, lines.splitlines())] == [6]
    assert best_of(run)["step"] == 6


def test_the_evaluator_of_a_cluster_follows_by_itself(folder):
    jobs = {
        "multi_worker_mirrored": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
        "parameter_server": {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2"],
            "ps": ["127.0.0.1:3"],
        },
    }
    processes = {}
    for name, cluster in jobs.items():
        shutil.copytree(
            folder / "run" / "checkpoints", folder / name / "checkpoints"
        )
        task = {"type": "evaluator", "index": 0}
        processes[name] = start(
            folder,
            f"--model_dir={name}",
            "--mode=train_and_eval",
            "--train_steps=6",
            TF_CONFIG=json.dumps({"cluster": cluster, "task": task}),
        )
    expected = evaluations(folder / "run" / "metrics_evaluator.jsonl")[-1]
    for name, process in processes.items():
        finish(process)
        (line,) = read_lines(folder / name / "metrics_evaluator.jsonl")
        assert line == expected
        assert {p.name for p in (folder / name).iterdir()} == {
            "checkpoints",
            "best",
            "metrics_evaluator.jsonl",
            "evaluator",
        }


def test_the_command_line_says_that_there_is_no_checkpoint(folder):
    process = start(
        folder,
        "--model_dir=nothing",
        "--mode=continuous_eval",
        "--gin.run.eval_timeout='0.1s'",
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("error: nothing/checkpoints has no usable")
    assert len(err.splitlines()) <= 3
