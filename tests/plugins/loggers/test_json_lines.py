import functools
import json
import math

import numpy as np
import pytest

from tests.plugins.loggers import training
from trainer_plugins import JsonLines

make = functools.partial(training.make, JsonLines)


def read(model_dir):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (model_dir / "metrics.jsonl").read_text()
    return [
        json.loads(line, parse_constant=refuse) for line in text.splitlines()
    ]


def test_lines_hold_step_split_and_scalars(tmp_path):
    callback = make(tmp_path / "new")
    callback.on_train_begin()
    callback.on_log(5, "train", {"loss": np.float32(0.5), "accuracy": 1.0})
    callback.on_log(5, "eval", {"loss": 0.25})
    assert read(tmp_path / "new") == [
        {"step": 5, "split": "train", "loss": 0.5, "accuracy": 1.0},
        {"step": 5, "split": "eval", "loss": 0.25},
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_null(tmp_path, value):
    callback = make(tmp_path)
    callback.on_log(1, "train", {"loss": np.float32(value), "accuracy": 0.5})
    assert read(tmp_path) == [
        {"step": 1, "split": "train", "loss": None, "accuracy": 0.5}
    ]


def test_a_metric_named_step_does_not_hide_the_step(tmp_path):
    callback = make(tmp_path)
    callback.on_log(7, "train", {"step": 0.1, "loss": 1.0})
    assert read(tmp_path)[0]["step"] == 7


def test_resuming_drops_later_steps_and_the_torn_line(tmp_path):
    first = make(tmp_path)
    for step in (10, 20, 30):
        first.on_log(step, "train", {"loss": 1.0 / step})
        first.on_log(step, "eval", {"loss": 2.0 / step})
    path = tmp_path / "metrics.jsonl"
    expected = b"".join(path.read_bytes().splitlines(keepends=True)[:4])
    with path.open("ab") as file:
        file.write(b'{"step": 12, "spl')

    resumed = make(tmp_path, step=20)
    resumed.on_train_begin()

    assert path.read_bytes() == expected
    resumed.on_log(30, "train", {"loss": 0.0})
    assert [line["step"] for line in read(tmp_path)] == [10, 10, 20, 20, 30]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_evaluation_alone_keeps_a_torn_line_apart(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "spl')
    make(tmp_path).on_log(2, "eval", {"loss": 1.0})
    torn, whole = path.read_text().splitlines()
    assert torn == '{"step": 1, "spl'
    assert json.loads(whole) == {"step": 2, "split": "eval", "loss": 1.0}


def test_an_evaluator_writes_a_file_of_its_own_once_a_step(tmp_path):
    make(tmp_path).on_log(1, "train", {"loss": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    own = tmp_path / "metrics_evaluator.jsonl"
    # Killed between the two splits of a step.
    for splits in (["eval"], ["eval", "rare"]):
        evaluator = make(tmp_path)
        evaluator.following = True
        evaluator.setup()
        for split in splits:
            evaluator.on_log(2, split, {"loss": 1.0})
        evaluator.close()
        with own.open("a") as file:
            file.write('{"step": 3, "spl')
    lines = own.read_text().splitlines()
    found = [json.loads(line) for line in lines[:-1]]
    assert [(line["step"], line["split"]) for line in found] == [
        (2, "eval"),
        (2, "rare"),
    ]
    # A training process that resumes does not touch it.
    make(tmp_path, step=0).on_train_begin()
    assert own.read_text().splitlines() == lines
    assert before != (tmp_path / "metrics.jsonl").read_bytes()


def test_with_the_trainer(tmp_path):
    values = training.train_with(JsonLines(), tmp_path)
    lines = read(tmp_path)
    assert [(line["step"], line["split"]) for line in lines] == [
        (10, "train"),
        (10, "eval"),
        (20, "train"),
        (20, "eval"),
    ]
    assert lines[3]["loss"] == values["val_loss"]
    assert lines[2]["loss"] == values["loss"]
    assert lines[2]["examples_per_second"] > 0
