"""A sweep from its first run to its table, killed in between."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.trainer.cli.tiny import HERE, TINY, run_trainer
from trainer.runs.status import read_status

pytestmark = pytest.mark.long
TEXT = TINY + "run.callbacks = [@JsonLines(), @Checkpoint(), @Preemption()]\n"


def sweep(folder, *arguments, text=TEXT, values="[0.1, 1e-2]"):
    return run_trainer(
        folder,
        "--model_dir=runs/s",
        f"--sweep=SGD.learning_rate={values}",
        *arguments,
        text=text,
    )


def starts(folder):
    return {
        path.parent.name: json.loads(path.read_text())["start"]
        for path in (folder / "runs" / "s").glob("*/run.json")
    }


def test_a_sweep_ends_with_a_table_and_repeats_nothing(tmp_path):
    done = sweep(tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    names = ["learning_rate=0.1", "learning_rate=0.01"]
    assert f"run 2/2: {names[1]}" in done.stdout
    table = done.stdout.split("val_loss")[-1]
    assert all(name in table for name in names)
    before = starts(tmp_path)
    assert set(before) == set(names)
    # One value more: only that one is trained.
    done = sweep(tmp_path, values="[0.1, 1e-2, 0.2]")
    assert done.returncode == 0, done.stderr
    assert f"run 1/3: {names[0]} is done" in done.stdout
    after = starts(tmp_path)
    assert before == {name: after[name] for name in names}
    assert len(after) == 3
    # Longer: all go on.
    done = run_trainer(tmp_path, "--resume=s", "--train_steps=12", text=TEXT)
    assert done.returncode == 0, done.stderr
    for name in after:
        path = tmp_path / "runs" / "s" / name / "checkpoints"
        assert (path / "step_00000012").is_dir()


def test_a_failed_run_is_said_after_the_others(tmp_path):
    text = TEXT + "Trainer.guard = @Guard()\nGuard.max_loss = 1e6\n"
    text += "run.train_steps = 40\n"
    done = sweep(tmp_path, text=text, values="[100.0, 0.01]")
    assert done.returncode == 1, done.stderr
    states = {
        name: read_status(str(tmp_path / "runs" / "s" / name)).state
        for name in starts(tmp_path)
    }
    assert states == {
        "learning_rate=100.0": "diverged",
        "learning_rate=0.01": "done",
    }


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ("[0.1, 'fast']", "SGD.learning_rate"),
        ("[0.1, @Adm()]", "Did you mean 'Adam'?"),
    ],
)
def test_a_wrong_value_is_said_before_the_first_run(tmp_path, values, part):
    done = sweep(tmp_path, values=values)
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert part in said
    assert not (tmp_path / "runs").exists()


def test_a_name_that_nothing_uses_ends_the_sweep(tmp_path):
    text = TEXT + "Adam.beta_1 = 0.5\n"
    done = run_trainer(
        tmp_path,
        "--model_dir=runs/s",
        "--sweep=Adam.beta_1=[0.5, 0.6]",
        text=text.replace("Adam.beta_1 = 0.5\n", ""),
    )
    assert done.returncode == 2, done.stderr
    assert "Adam.beta_1" in done.stdout + done.stderr
    assert starts(tmp_path) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_was_ended_goes_on(tmp_path, number):
    (tmp_path / "tiny.gin").write_text(TEXT)
    command = [
        *(sys.executable, "-m", "trainer", "--gin_file=tiny.gin"),
        *("--model_dir=runs/s", "--sweep=SGD.learning_rate=[0.1, 1e-2]"),
        *("--train_steps=1200", "--gin.Checkpoint.every=200"),
        # Not after each epoch, which here is four steps: that takes minutes.
        *("--jit_compile=graph", "--gin.run.log_every=1000"),
        *("--gin.run.eval_every=1000", "--gin.run.steps_per_loop=20"),
    ]
    environ = {**os.environ, "PYTHONPATH": HERE}
    first = tmp_path / "runs" / "s" / "learning_rate=0.1"
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 300
        while not list(first.glob("checkpoints/step_*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        code = process.wait(100)
    assert code == (75 if number == signal.SIGTERM else -number)
    assert set(starts(tmp_path)) == {"learning_rate=0.1"}
    # The run does not outlive the sweep.
    deadline = time.monotonic() + 20
    while read_status(str(first)).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((first / "run.json").read_text())
    assert record["restarts"] == 1
    assert {
        read_status(str(tmp_path / "runs/s" / n)).state
        for n in starts(tmp_path)
    } == {"done"}
