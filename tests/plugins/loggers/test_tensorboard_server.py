"""What a running TensorBoard shows of runs, by its own web interface."""

import json
import time
import urllib.request

import gin
import pytest
from tensorboard import program

from tests.helpers import linear, make_trainer
from tests.plugins.loggers.service_script import LogsMedia
from trainer_plugins import Checkpoint, TensorBoard

pytestmark = pytest.mark.long


@pytest.fixture
def serve():
    """Starts TensorBoard on a directory; returns what asks it."""

    def start(logdir):
        server = program.TensorBoard()
        server.configure(
            argv=["", f"--logdir={logdir}", "--port=0", "--load_fast=false"]
        )
        url = server.launch()

        def ask(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(
                f"{url}data/{path}",
                data=data,
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
            is_json = "json" in answer.headers["Content-Type"]
            return json.loads(content) if is_json else content

        return ask

    yield start
    gin.clear_config()


def until(ask, path, wanted):
    """Asks until something is there: the files are read in the background."""
    for _ in range(120):
        found = ask(path)
        if wanted(found):
            return found
        time.sleep(0.5)
    raise AssertionError(found)


def train(model_dir, steps, *callbacks):
    make_trainer(linear).train_and_evaluate(
        steps,
        model_dir=str(model_dir),
        callbacks=[TensorBoard(), LogsMedia(), Checkpoint(), *callbacks],
        log_every=4,
        steps_per_loop=4,
        eval_every=8,
        verbose=0,
    )


def test_tensorboard_shows_every_kind_and_a_row_for_each_run(tmp_path, serve):
    for i, name in enumerate(("first", "second")):
        with gin.unlock_config():
            gin.bind_parameter("Checkpoint.keep_last", 2 + i)
            gin.bind_parameter("Guard.max_loss", 20.0 + i)
            # What was used stands for these: the call gives a batch size.
            gin.bind_parameter("Trainer.learning_rate", 0.125)
            gin.bind_parameter("Trainer.batch_size", 1000)
        train(tmp_path / name, 16)
    # Resumed: its steps are there once, and its row stays one.
    train(tmp_path / "second", 24)
    ask = serve(tmp_path)
    ours, evaluated = "second/train", "second/eval"
    tags = until(
        ask,
        "plugin/scalars/tags",
        lambda found: evaluated in found and "loss" in found.get(ours, {}),
    )
    names = {"own", "learning/learning_rate", "time/step_seconds"}
    names |= {"perf/steps_per_second", "perf/goodput"}
    assert names <= tags[ours].keys()
    assert all(one["description"] for one in tags[ours].values())
    runs = ask("runs")
    assert sorted(runs) == [
        *("first/eval", "first/train", "second/eval", "second/train"),
    ]
    graph = ask(f"plugin/graphs/graph?run={ours.replace('/', '%2F')}")
    assert b'op: "Dense"' in graph
    query = f"run={ours.replace('/', '%2F')}&tag=loss"
    events = ask(f"plugin/scalars/scalars?{query}")
    assert [step for _, step, _ in events] == [4, 8, 12, 16, 20, 24]
    for plugin, tag in (
        ("images", "images"),
        ("audio", "sound"),
        ("text", "text"),
    ):
        found = ask(f"plugin/{plugin}/tags")
        assert tag in found[evaluated], plugin
    # Of an evaluation, the one that the end of the first call asked for.
    found = ask("plugin/histograms/tags")
    assert "histogram" in found[evaluated]
    quoted = evaluated.replace("/", "%2F")
    images = ask(f"plugin/images/images?run={quoted}&tag=images&sample=1")
    assert [one["step"] for one in images] == [8, 16, 24]
    png = ask(f"plugin/images/individualImage?{images[-1]['query']}")
    assert png[:4] == b"\x89PNG"
    (text,) = [
        one
        for one in ask(f"plugin/text/text?run={quoted}&tag=text")
        if one["step"] == 24
    ]
    assert "step 24" in text["text"]
    buckets = ask(f"plugin/histograms/histograms?run={quoted}&tag=histogram")
    assert sum(count for *_, count in buckets[-1][2]) == 24

    rows = ask(
        "plugin/hparams/session_groups",
        {
            "allowedStatuses": [
                "STATUS_UNKNOWN",
                "STATUS_SUCCESS",
                "STATUS_RUNNING",
            ],
            "startIndex": 0,
            "sliceSize": 10,
        },
    )["sessionGroups"]
    # The name of the directory first: TensorBoard cuts long ones.
    assert [row["name"] for row in rows] == [
        f"first ({tmp_path})",
        f"second ({tmp_path})",
    ]
    for row, most in zip(rows, (20.0, 21.0), strict=True):
        assert row["hparams"] == {
            "Guard.max_loss": most,
            "batch_size": 8,
            "learning_rate": 0.125,
            "train_steps": 16,
        }
