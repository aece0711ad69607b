"""`fast_dev_run`: all of a run in two steps, and nothing of it stays."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.helpers import ARRAYS, assert_same, linear, make_trainer
from tests.trainer.check.test_check import SAVES, digests
from tests.trainer.cli.tiny import HERE, run_trainer
from trainer import Callback, UserError
from trainer_plugins.callbacks.checkpoint import Checkpoint
from trainer_plugins.callbacks.json_lines import JsonLines


class Notes(Callback):
    """Notes the events of ours and of Keras, and what the folder holds."""

    runs_last = True

    def __init__(self):
        super().__init__()
        self.events = []
        self.files = set()

    def on_save(self, step, logs):
        self.events.append(("save", step))

    def on_log(self, step, split, logs):
        self.events.append((split, step))

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(("epoch", epoch))

    def on_train_end(self, logs=None):
        for place, _, names in os.walk(self.trainer.model_dir):
            inside = os.path.relpath(place, self.trainer.model_dir)
            self.files |= {os.path.join(inside, name) for name in names}
        self.events.append("end")


def test_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = []
    notes = Notes()
    notes.events = events
    csv = keras.callbacks.CSVLogger("log.csv")
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.keras"), save_best_only=True
    )
    trainer = make_trainer(linear)
    trainer.train(3, verbose=0)
    before = [np.array(w) for w in trainer.model.get_weights()]
    loop = trainer.loop
    values = trainer.train_and_evaluate(
        1000,
        model_dir="run",
        callbacks=[
            Checkpoint(),
            JsonLines(),
            csv,
            best,
            notes,
        ],
        fast_dev_run=True,
        verbose=0,
    )
    assert np.isfinite(values["val_loss"])
    # Two steps from where it was, each of them logged, evaluated at the end.
    assert events == [
        *(("train", 4), ("save", 4), ("eval", 5), ("train", 5)),
        *(("epoch", 0), ("save", 5), "end"),
    ] or events == [
        *(("train", 4), ("save", 4), ("train", 5), ("eval", 5)),
        *(("epoch", 0), ("save", 5), "end"),
    ]
    assert "./metrics.jsonl" in notes.files
    assert "keras/best.keras" in notes.files
    assert "keras/log.csv" in notes.files
    # And nothing of it stays.
    assert list(tmp_path.iterdir()) == []
    assert trainer.step == 3
    assert trainer.loop is loop
    assert_same(trainer.model.get_weights(), before)
    assert csv.filename == "log.csv"
    assert best.best is None or not np.isfinite(best.best)
    # It trains on as if there had been none.
    other = make_trainer(linear)
    other.train(5, verbose=0)
    trainer.train(5, verbose=0)
    assert_same(trainer.model.get_weights(), other.model.get_weights())


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise UserError("the epoch's end fails")


def test_what_fails_late_fails_here():
    trainer = make_trainer(linear)
    with pytest.raises(UserError, match="the epoch's end fails"):
        trainer.train(1000, callbacks=[Fails()], fast_dev_run=True, verbose=0)
    assert trainer.step == 0
    assert len(ARRAYS[0]) == 64


@pytest.mark.long
def test_on_the_command_line(tmp_path):
    done = run_trainer(tmp_path, "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    before = digests(tmp_path)
    done = run_trainer(
        tmp_path, "--model_dir=run", "--fast_dev_run", text=SAVES
    )
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path) == before
    assert "exported by              Export" in done.stdout
    assert "restores what was saved  yes" in done.stdout
    assert "model_dir" not in done.stdout
    done = run_trainer(
        tmp_path, "--mode=export", "--model_dir=run", "--fast_dev_run"
    )
    assert done.returncode == 2
    assert "fast_dev_run tries a run that trains" in done.stderr
    done = run_trainer(
        tmp_path,
        "--fast_dev_run",
        text=SAVES.replace("@Export()", "@Export(), @Fails()"),
        FAIL_WITH="bug",
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "task", ["mirrored", "multi_worker_mirrored@2", "parameter_server@1+1"]
)
def test_under_other_strategies(tmp_path, task):
    name, _, tasks = task.partition("@")
    workers, _, servers = tasks.partition("+")
    (tmp_path / "tiny.gin").write_text(SAVES)
    launch = ["trainer.launch", f"--num_workers={workers}"]
    launch += [f"--num_ps={servers}"] if servers else []
    done = subprocess.run(
        [
            *(sys.executable, "-m"),
            *([*launch, "--"] if tasks else ["trainer"]),
            *("--gin_file=tiny.gin", "--fast_dev_run", "--model_dir=run"),
            f"--strategy={name}",
            *([] if tasks else ["--virtual_devices=2"]),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "restores what was saved" in done.stdout
    # The launcher keeps its tasks' output; the run itself leaves nothing.
    run = tmp_path / "run"
    left = [p.name for p in run.iterdir()] if run.exists() else []
    assert not {"checkpoints", "run.json", "export", "form.json"} & {*left}
    assert {p.name for p in tmp_path.iterdir()} <= {"tiny.gin", "run"}
