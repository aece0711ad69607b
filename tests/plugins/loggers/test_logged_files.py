"""The files of a run's values: JSON lines, CSV and TensorBoard's events.

Real runs, which are resumed from an earlier checkpoint than they came to.
"""

import csv
import json
import math
import re
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator,
)

from tests.helpers import linear, make_trainer
from trainer import Callback, WholeSetMetric
from trainer_plugins import CSV, Checkpoint, JsonLines, TensorBoard


def rows(model_dir):
    with (model_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def lines(model_dir):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (model_dir / "metrics.jsonl").read_text()
    return [
        json.loads(line, parse_constant=refuse) for line in text.splitlines()
    ]


def scalars(model_dir, split, tag):
    directory = model_dir / "tensorboard" / split
    found = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    return {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in found.Reload().Tensors(tag)
    }


class Late(Callback):
    """Logs a value that begins in the middle of a run."""

    def on_train_batch_end(self, batch, logs=None):
        if self.run.step == 16:
            self.run.log("late", 0.5)
            self.run.log("text", "x,y")


def train(model_dir, steps, **options):
    trainer = make_trainer(
        linear,
        metrics=[WholeSetMetric(lambda y, y_pred: np.nan, name="odd")],
        **options,
    )
    return trainer.train_and_evaluate(
        steps,
        model_dir=str(model_dir),
        callbacks=[
            *(JsonLines(), CSV(), TensorBoard(), Late()),
            Checkpoint(every=8, keep_last=9),
        ],
        steps_per_loop=4,
        log_every=4,
        eval_every=8,
        verbose=0,
    )


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run that came to step 20, and goes on from step 8."""
    folder = tmp_path_factory.mktemp("run")
    train(folder, 20)
    for step in (16, 20):
        shutil.rmtree(folder / "checkpoints" / f"step_{step:08d}")
    for name, torn in (("jsonl", b'{"step": 24, "spl'), ("csv", b"24,tra")):
        with (folder / f"metrics.{name}").open("ab") as file:
            file.write(torn)
    # Event files are ordered by the second.
    time.sleep(1.0 - time.time() % 1.0)
    return folder, train(folder, 24)


def test_each_value_is_there_once_after_a_resume(resumed):
    folder, values = resumed
    train_steps, eval_steps = [4, 8, 12, 16, 20, 24], [8, 16, 24]
    for found in (lines(folder), rows(folder)):
        for split, steps in (("train", train_steps), ("eval", eval_steps)):
            of_split = [one for one in found if one["split"] == split]
            assert [int(one["step"]) for one in of_split] == steps
    last = {one["split"]: one for one in lines(folder)}
    for split, name in (("train", "loss"), ("eval", "val_loss")):
        expected = pytest.approx(values[name])
        assert last[split]["loss"] == expected
        assert scalars(folder, split, "loss")[24] == expected
    assert list(scalars(folder, "train", "loss")) == train_steps
    assert list(scalars(folder, "eval", "loss")) == eval_steps
    assert last["train"]["examples_per_second"] > 0


def test_what_is_not_finite_and_what_begins_late(resumed):
    folder, _ = resumed
    evaluated = [one for one in lines(folder) if one["split"] == "eval"]
    assert all(one["odd"] is None for one in evaluated)
    of_csv = [one for one in rows(folder) if one["split"] == "eval"]
    assert all(math.isnan(float(one["odd"])) for one in of_csv)
    assert [one["late"] for one in rows(folder) if one["late"]] == ["0.5"]
    assert scalars(folder, "train", "late") == {16: 0.5}


def bytes_moved():
    """What this process has read and written so far."""
    with open("/proc/self/io") as file:
        pairs = [line.split(": ") for line in file]
    return sum(int(n) for name, n in pairs if name in ("rchar", "wchar"))


def test_a_resume_reads_the_end_of_a_log_only(tmp_path):
    """256 MB, a hole, are behind the first line; a step is repeated."""
    hole = 1 << 28

    def go_to(steps):
        make_trainer(linear).train(
            steps,
            model_dir=str(tmp_path),
            callbacks=[JsonLines(), CSV(), Checkpoint(every=8, keep_last=9)],
            steps_per_loop=4,
            log_every=4,
            verbose=0,
        )

    go_to(24)
    shutil.rmtree(tmp_path / "checkpoints" / "step_00000024")
    for name in ("metrics.jsonl", "metrics.csv"):
        with (tmp_path / name).open("r+b") as file:
            first, rest = file.readline(), file.read()
            file.seek(len(first) + hole)
            file.write(b"\n" + rest + b"torn")
            file.seek(len(first))
            file.write(bytes(len(rest)))
    before = bytes_moved()
    go_to(28)
    assert bytes_moved() - before < hole // 8
    for name, first in (("metrics.jsonl", 8), ("metrics.csv", 4)):
        text = (tmp_path / name).read_bytes()[hole:]
        found = re.findall(rb'(?m)^(?:{"step": )?(\d+),', text)
        assert list(map(int, found)) == list(range(first, 32, 4))
        assert text.count(b"\n") == len(found) + 1
