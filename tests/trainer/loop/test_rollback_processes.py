"""Runs of the command line that meet a batch which is no number."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.helpers import compare, lines, saved_steps, skipped_batches

PARTS = '''
import math, os, signal
import gin, keras, numpy as np
from trainer import ArrayExamples, Callback

@gin.configurable
def poisoned(split, batches=()):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 4, 3)).astype("float32")
    x[list(batches), 1, 1] = math.nan
    x = x.reshape(-1, 3)
    return ArrayExamples((x, np.nansum(x, -1)[:, None]), shuffle=False)

@gin.configurable
def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

@gin.configurable
class Killer(Callback):
    """Kills its process when it has gone back."""

    def on_roll_back(self, step):
        if os.environ.get("KILL"):
            os.kill(os.getpid(), signal.SIGKILL)
'''
GIN = """
import parts
Trainer.model = @dense
Trainer.data = @poisoned
poisoned.batches = [9, 17, 23]
Trainer.loss = 'mse'
Trainer.batch_size = 4
Trainer.guard = @Guard()
Guard.action = 'roll_back'
run.train_steps = 30
run.log_every = 1
run.steps_per_loop = 3
Checkpoint.every = 6
run.callbacks = [@JsonLines(), @Killer(), @Checkpoint()]
"""


def command_line(folder, name, **environment):
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "trainer",
            "--gin_file=run.gin",
            f"--model_dir={name}",
            "--mode=train",
        ],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.long
def test_a_run_that_is_killed_when_it_has_gone_back_goes_on(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "run.gin").write_text(GIN)
    done = command_line(tmp_path, "whole")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Continuing from step 6" in done.stderr
    for _ in range(3):
        done = command_line(tmp_path, "killed", KILL="1")
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    done = command_line(tmp_path, "killed", KILL="1")
    assert done.returncode == 0, done.stderr[-3000:]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in whole, killed:
        assert [e["batch"] for e in skipped_batches(folder)] == [9, 17, 23]
    assert [line["step"] for line in lines(killed)] == list(range(3, 31, 3))
    compare(killed, whole)


def test_the_command_line_ends_with_a_sentence_when_training_diverges(
    tmp_path,
):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "run.gin").write_text(GIN + "Guard.action = 'stop'\n")
    done = command_line(tmp_path, "run")
    assert done.returncode == 1
    assert "error: Training diverged after step 9, on batch 9" in done.stderr
    assert "Traceback" not in done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"] == "diverged"
    assert record["exit_message"].startswith("Diverged: Training diverged")
    assert saved_steps(tmp_path / "run") == [6]
