"""MLflow and Weights & Biases, with the real packages and their local stores.

Runs are killed with SIGKILL, and resumed.
"""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.helpers import linear, make_trainer
from trainer_plugins import Checkpoint, MLflow

SCRIPT = "tests.plugins.loggers.service_script"


class Kept(MLflow):
    """A service whose store is a list, and which refuses now and then."""

    def __init__(self):
        super().__init__()
        self.store, self.broken, self.known = [], False, None

    def setup(self):
        pass

    def open(self, known, parameters):
        self.known = known
        return known or "id"

    def send(self, step, values):
        if self.broken:
            raise OSError("no connection")
        self.store += [(step, name) for name in values]

    def end(self, *, done):
        self.done = done


def test_a_service_gets_each_step_once_also_after_a_refusal(tmp_path, caplog):
    def run(steps, logger):
        make_trainer(linear).train(
            steps,
            model_dir=str(tmp_path),
            callbacks=[logger, Checkpoint(every=4)],
            log_every=4,
            steps_per_loop=4,
            verbose=0,
        )

    first = Kept()
    first.broken = True
    run(8, first)
    assert first.store == []
    assert any("no connection" in one for one in caplog.messages)
    # What the checkpoint holds of it is written by the next attempt.
    second = Kept()
    run(16, second)
    assert second.known == "id"
    assert second.done
    steps = [step for step, name in second.store if name == "train/loss"]
    assert steps == [4, 8, 12, 16]


def start(kind, model_dir, steps, kill_at, **more):
    """Runs the script; it kills itself at a step, or ends well."""
    done = subprocess.run(
        [sys.executable, "-m", SCRIPT, kind, model_dir, str(steps), kill_at],
        cwd=ROOT,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=500,
    )
    expected = 0 if kill_at == "never" else -signal.SIGKILL
    assert done.returncode == expected, done.stderr[-4000:]
    return done.stderr


@pytest.mark.long
@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_mlflow_holds_each_step_once_after_kill_9(tmp_path, store):
    mlflow = pytest.importorskip("mlflow")
    model_dir = str(tmp_path / "the_run")
    more = {}
    uri = f"sqlite:///{model_dir}/mlflow.db"
    if store == "files":
        uri = f"file://{tmp_path}/mlruns"
        more = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": uri}
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    start("mlflow", model_dir, 24, "18", **more)
    start("mlflow", model_dir, 24, "never", **more)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("trainer")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "the_run"
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "8"
    assert run.data.params["learning_rate"] == "0.001"
    for name, steps in (
        ("train/loss", [4, 8, 12, 16, 20, 24]),
        ("train/own", [4, 8, 12, 16, 20, 24]),
        ("eval/loss", [8, 16, 24]),
    ):
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted(one.step for one in history) == steps
    logged = [
        json.loads(one)
        for one in (tmp_path / "the_run" / "metrics.jsonl")
        .read_text()
        .splitlines()
    ]
    assert {
        one["step"]: one["loss"] for one in logged if one["split"] == "train"
    } == {
        one.step: one.value
        for one in client.get_metric_history(run.info.run_id, "train/loss")
    }


def records_of(content):
    """The records in a file of W&B's, which is a log as LevelDB writes it."""
    assert content.startswith(b":W&B")
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768  # In this block.
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        if not kind:
            return  # Not yet written.
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # Whole, or the last part.
            yield record
            record = b""


def rows_of(model_dir):
    """The rows in the files of W&B's offline runs."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(
        pathlib.Path(model_dir).glob("wandb/offline-run-*/*.wandb")
    ):
        for content in records_of(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                row = {}
                for item in record.history.item:
                    name = item.key or "/".join(item.nested_key)
                    row[name] = json.loads(item.value_json)
                found.append(row)
    return found


@pytest.mark.long
def test_wandb_goes_on_after_kill_9(tmp_path):
    """It holds each step; twice at most that which was just being sent."""
    pytest.importorskip("wandb")
    model_dir = str(tmp_path / "the_run")
    start("wandb", model_dir, 24, "18")
    first = rows_of(model_dir)
    # A killed process loses nothing that a checkpoint has passed: that of 12.
    steps = [r["step"] for r in first if "train/loss" in r]
    assert steps[:3] == [4, 8, 12]
    start("wandb", model_dir, 24, "never")
    rows = rows_of(model_dir)
    every = [4, 8, 12, 16, 20, 24]
    steps = [r["step"] for r in rows if "train/loss" in r]
    if steps.count(16) == 2:
        steps.remove(16)
    assert steps == every
    evaluated = {r["step"] for r in rows if "eval/loss" in r}
    assert evaluated == {8, 16, 24}
    media = [r for r in rows if "eval/text" in r]
    assert sorted({r["step"] for r in media}) == [8, 16, 24]
    assert media[0]["eval/images/_type"] == "images/separated"
    assert media[0]["eval/images/count"] == 2
    assert media[0]["eval/histogram/_type"] == "histogram"
    assert media[0]["eval/text"] == "step 8"
    ids = {
        folder.rpartition("-")[2]
        for folder in os.listdir(f"{model_dir}/wandb")
        if folder.startswith("offline-run-")
    }
    assert len(ids) == 1
