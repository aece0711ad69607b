"""The files of a run's values: JSON lines, CSV and TensorBoard's events.

Real runs, which are resumed from an earlier checkpoint than they came to.
"""

import csv
import json
import math
import re
import shutil
import time

import keras
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


def events(directory):
    found = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    return found.Reload()


def scalars(model_dir, split, tag):
    return {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in events(model_dir / split).Tensors(tag)
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


def test_tags_have_groups_units_and_descriptions(resumed):
    folder, _ = resumed
    found = events(folder / "train")
    tags = {*found.Tags()["tensors"]} - {"__run_graph__"}
    assert {tag for tag in tags if "/" in tag} >= {
        *("perf/steps_per_second", "perf/step_time_seconds"),
        *("perf/examples_per_second", "perf/goodput"),
        *("learning/learning_rate", "time/step_seconds", "time/total_seconds"),
    }
    # The others are what was trained, and what was given.
    assert {tag for tag in tags if "/" not in tag} == {
        *("loss", "late", "text", "operative_config"),
    }
    for tag in tags:
        assert found.SummaryMetadata(tag).summary_description
    of_loss = events(folder / "eval").SummaryMetadata("loss")
    assert (
        of_loss.summary_description == "Of an evaluation of the split 'eval'."
    )
    speed = scalars(folder, "train", "perf/examples_per_second")
    times = scalars(folder, "train", "perf/step_time_seconds")
    assert speed.keys() == times.keys() == {4, 8, 12, 16, 20, 24}
    for step, value in scalars(
        folder, "train", "perf/steps_per_second"
    ).items():
        assert value * times[step] == pytest.approx(1)
        assert value * 8 == pytest.approx(speed[step])
    last = [x for x in lines(folder) if x["split"] == "train"][-1]
    assert speed[24] == pytest.approx(last["examples_per_second"])


def test_the_layers_are_a_graph(resumed):
    folder, _ = resumed
    graph = events(folder / "train").Graph()
    assert [node.op for node in graph.node] == ["InputLayer", "Dense"]
    inputs, dense = graph.node
    assert list(dense.input) == [inputs.name]


def test_a_model_of_models_in_mixed_precision_is_a_graph(tmp_path, caplog):
    def nested():
        x, y = keras.Input((3,)), keras.Input((3,))
        inner = keras.Model([x, y], keras.layers.Add()([x, y]), name="inner")
        whole = keras.Input((3,))
        both = inner([whole, keras.layers.Dense(3, name="outer")(whole)])
        return keras.Model(whole, keras.layers.Dense(1)(both))

    make_trainer(nested, precision="mixed_bfloat16").train(
        2, model_dir=tmp_path, callbacks=[TensorBoard()], verbose=0
    )
    found = {
        node.name: node for node in events(tmp_path / "train").Graph().node
    }
    assert found["outer"].attr["dtype"].type == tf.bfloat16.as_datatype_enum
    assert any(name.startswith("inner/") for name in found)
    assert "Unsupported dtype" not in caplog.text


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def deep():
    x = inputs = keras.Input((3,))
    return keras.Model(
        inputs,
        keras.layers.Dense(1)(
            keras.layers.Add()(
                [keras.layers.Identity()(x) for _ in range(1000)]
            )
        ),
    )


@pytest.mark.parametrize(
    ("model", "options", "is_said"),
    [
        (Own, {}, True),
        (deep, {}, True),
        (linear, {"write_graph": False}, False),
    ],
)
def test_a_model_without_a_graph(tmp_path, caplog, model, options, is_said):
    caplog.set_level("INFO", logger="absl")
    make_trainer(model, probe=False).train(
        2, model_dir=tmp_path, callbacks=[TensorBoard(**options)], verbose=0
    )
    assert not events(tmp_path / "train").Tags()["graph"]
    assert ("shows no graph" in caplog.text) == is_said


def test_histograms_of_weights_on_request(tmp_path):
    trainer = make_trainer(linear)
    trainer.train(
        12,
        model_dir=tmp_path,
        callbacks=[TensorBoard(histogram_every=5)],
        verbose=0,
    )
    found = events(tmp_path / "train")
    for variable in trainer.model.trainable_variables:
        buckets = found.Tensors(f"weights/{variable.path}")
        assert [one.step for one in buckets] == [5, 10]
        counts = tf.make_ndarray(buckets[-1].tensor_proto)[:, 2]
        assert counts.sum() == np.size(variable)


def test_a_run_of_an_earlier_version_goes_on_where_it_wrote(tmp_path):
    train(tmp_path, 8)
    (tmp_path / "tensorboard").mkdir()
    for split in ("train", "eval"):
        (tmp_path / split).rename(tmp_path / "tensorboard" / split)
    # Event files are ordered by the second.
    time.sleep(1.0 - time.time() % 1.0)
    train(tmp_path, 16)
    assert not (tmp_path / "train").exists()
    found = scalars(tmp_path, "tensorboard/train", "loss")
    assert list(found) == [4, 8, 12, 16]


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
