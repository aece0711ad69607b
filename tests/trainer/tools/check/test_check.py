"""`--mode=check`: what it says of a run, and that it leaves no trace."""

import functools
import hashlib
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.trainer.cli.tiny import HERE, TINY, run_trainer
from trainer import Diverged, Guard, Trainer
from trainer.experiment import build
from trainer_plugins import Checkpoint

SAVES = TINY + "run.callbacks = [@Checkpoint(), @JsonLines(), @Export()]\n"


def digests(folder):
    """What a folder holds: by path, a file's digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        if path.is_file()
        else "a folder"
        for path in folder.rglob("*")
    }


def report(folder):
    return json.loads((folder / "check.json").read_text())


def test_a_new_run(tmp_path):
    done = run_trainer(tmp_path, "--mode=check", "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    assert "would start      yes" in done.stdout
    run = tmp_path / "run"
    assert list(digests(run)) == ["check.json"]
    found = report(run)
    assert found["would_start"] is True
    assert found["run"]["begins_at_step"] == 0
    assert found["run"]["ends_at_step"] == 8
    model = found["model"]
    assert model["parameters"] == model["trainable_parameters"] == 5
    assert model["model_memory"] == 5 * 4
    # SGD has a counter and a learning rate.
    assert model["optimizer_memory"] <= 16
    steps = found["steps"]
    assert steps["steps_made"] >= 2
    assert steps["retraces"] == 0
    assert 0 < steps["loss"] < 10
    assert 0 < found["evaluation"]["loss"] < 10
    assert found["checkpoint"]["restores_what_was_saved"] is True
    assert found["export"]["export_by_Export"] > 0
    left = 8 / steps["steps_a_second"]
    assert steps["all_that_are_left"] == pytest.approx(left)
    assert found["verdict"]["unused_bindings"] == 0


def test_a_run_that_has_begun_stays_as_it_is(tmp_path):
    done = run_trainer(tmp_path, "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    # What a save that was killed leaves behind, and a run removes.
    (run / "checkpoints" / "tmp_0123").mkdir()
    before = digests(run)
    arguments = ("--model_dir=run", "--train_steps=20")
    done = run_trainer(tmp_path, "--mode=check", *arguments, text=SAVES)
    assert done.returncode == 0, done.stderr
    assert report(run)["run"]["begins_at_step"] == 8
    after = digests(run)
    del after["check.json"]
    assert after == before
    # A checkpoint that does not fit is found, and an old report is replaced.
    text = SAVES + "linear.units = 2\n"
    done = run_trainer(tmp_path, "--mode=check", *arguments, text=text)
    assert done.returncode == 2
    found = report(run)
    assert found["would_start"] is False
    assert "The checkpoint is of another model" in found["error"]
    after = digests(run)
    del after["check.json"]
    assert after == before


def test_what_would_not_start(tmp_path):
    text = SAVES + "linear.units = 'x'\n"
    done = run_trainer(tmp_path, "--mode=check", "--model_dir=run", text=text)
    assert done.returncode in (1, 2)
    assert report(tmp_path / "run")["would_start"] is False


@pytest.mark.long
def test_several_replicas(tmp_path):
    done = run_trainer(
        tmp_path,
        "--mode=check",
        "--model_dir=run",
        "--strategy=mirrored",
        "--virtual_devices=2",
        "--allow_unused_bindings",
        text=SAVES + "reduction.kind = 'sum'\n",
    )
    assert done.returncode == 0, done.stderr
    found = report(tmp_path / "run")
    assert found["run"]["replicas"] == 2
    assert found["steps"]["retraces"] == 0
    assert found["verdict"]["unused_bindings"] == 1
    assert "reduction.kind (tiny.gin" in found["verdict"]["notes"][0]


@pytest.mark.long
@pytest.mark.parametrize(
    "task", ["multi_worker_mirrored@2", "parameter_server@1+1"]
)
def test_a_cluster(tmp_path, task):
    name, _, tasks = task.partition("@")
    workers, _, servers = tasks.partition("+")
    (tmp_path / "tiny.gin").write_text(SAVES)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch"),
            f"--num_workers={workers}",
            *([f"--num_ps={servers}"] if servers else []),
            *("--", "--gin_file=tiny.gin", "--mode=check"),
            *("--model_dir=run", f"--strategy={name}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert report(tmp_path / "run")["would_start"] is True


def check(folder, x, *, callbacks=(Checkpoint,), **options):
    def trainer(strategy):
        return Trainer(
            model=lambda: keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(1)]
            ),
            loss="mse",
            data=lambda split: (x, x[:, :1]),
            strategy=strategy,
            **options,
        )

    return build(
        mode="check",
        model_dir=str(folder / "run"),
        trainer=trainer,
        strategy="default",
        callbacks=[one() for one in callbacks],
    )


class Notes(keras.callbacks.Callback):
    """A callback of Keras' kind, whose mistakes show in a check."""

    def __init__(self, got):
        super().__init__()
        self.got = got

    def set_model(self, model):
        super().set_model(model)
        self.got.append(model)


def test_in_python(tmp_path):
    # Keras' begins to write when it gets the model; to the check's folder.
    board = functools.partial(keras.callbacks.TensorBoard, tmp_path / "board")
    got = []
    notes = functools.partial(Notes, got)
    x = np.zeros((32, 4), "float32")
    with check(tmp_path, x, callbacks=[Checkpoint, board, notes]) as run:
        assert got == [run.call.model]
        assert run.run() == {"parameters": 5.0, "train_steps": 1000.0}
    titles = [section.title for section in run.tool.sections]
    assert titles[:3] == ["run", "model", "steps"]
    # Only the command line writes a report.
    assert not list(tmp_path.iterdir())


def test_what_the_guard_finds(tmp_path):
    x = np.full((32, 4), np.nan, "float32")
    message = "diverged after step 0.*loss is nan"
    run = check(tmp_path, x, guard=Guard())
    with run, pytest.raises(Diverged, match=message):
        run.run()
    with check(tmp_path, x, guard=Guard("roll_back", max_rollbacks=9)) as run:
        faults = []
        run.loop.try_steps(1, faults)
        assert "loss is nan" in faults[0]
        assert faults[0].endswith("A run would roll back.")
        with pytest.raises(Diverged, match="more often than Guard.max_roll"):
            run.loop.try_steps(1, faults * 9)
