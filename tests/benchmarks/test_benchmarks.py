"""`python -m benchmarks`: what it runs, and what it makes of it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks import (
    __main__ as command,
)
from benchmarks import (
    communication,
    contenders,
    goals,
    models,
    plot,
    scaling,
    table,
    turns,
)
from benchmarks.contenders import keras_fit
from benchmarks.orders import Task
from tests.conftest import ROOT


def measured(name, seconds, peak=None):
    return turns.Measured(
        Task(name, "mlp", 100), seconds=list(seconds), peak_bytes=peak
    )


def report_of(rows, **parts):
    return {
        "command": "python -m benchmarks",
        "date": "2026-01-01",
        "machine": table.machine(),
        "speed": {
            "mlp": {"title": "MLP", "rows": rows, "left_out": {"orbit": "no"}}
        },
        **parts,
    }


def test_a_ratio_is_the_median_of_those_within_a_round():
    ours = measured("trainer", [1.0, 2.0, 4.0], peak=200)
    # The machine slows down: in each round but one, half as fast as ours.
    other = measured("bare", [2.0, 4.0, 4.0], peak=100)
    first, second = table.rows([ours, other])
    assert first["ratio"] == 1
    assert second["ratio"] == 2
    assert second["peak_ratio"] == 2
    assert second["median"] == 25
    assert second["spread"] == 1


def test_the_table_has_a_row_for_each_and_says_who_is_left_out():
    rows = table.rows([measured("trainer", [1.0]), measured("bare", [2.0])])
    text = table.markdown(report_of(rows))
    assert "| Trainer | 100 | 0% | 1.00 | - |" in text
    assert "÷ it" in text
    assert "Left out: Orbit, 100 steps per loop (no)." in text


def test_a_later_run_adds_to_an_earlier_one():
    first, again = (
        report_of(table.rows([measured("trainer", [one])]))
        for one in (1.0, 2.0)
    )
    first |= {"startup": "kept", "note": "one"}
    first["speed"]["resnet20"] = first["speed"]["mlp"]
    again |= {"note": "two"}
    both = command.merged(first, again)
    assert both["startup"] == "kept"
    assert both["note"] == "one two"
    assert both["speed"]["mlp"] == again["speed"]["mlp"]
    assert list(both["speed"]) == ["mlp", "resnet20"]
    again["machine"] = {"cores": 0}
    with pytest.raises(SystemExit, match="another machine"):
        command.merged(first, again)


def test_goals_compare_with_the_fastest_of_the_same_form():
    rows = table.rows(
        [
            measured("trainer", [1.0], peak=100),
            measured("trainer:graph", [1.0], peak=100),
            measured("bare", [2.0], peak=100),
            measured("bare:xla", [0.5], peak=100),
        ]
    )
    found = goals.part(report_of(rows))["cells"]
    by_goal = {what: (value, met) for what, value, _, met in found}
    xla = contenders.title("bare:xla")
    graph = contenders.title("bare")
    ours = "Trainer, jit_compile=graph"
    assert by_goal[f"mlp: speed, Trainer ÷ fastest {xla}"] == ("0.50", "no")
    assert by_goal[f"mlp: speed, {ours} ÷ fastest {graph}"] == ("2.00", "yes")
    assert by_goal[f"mlp: speed, Trainer ÷ {graph}"] == ("2.00", "no")
    # What "auto" has chosen is told by the run.
    rows[0]["form"] = "graph"
    found = goals.part(report_of(rows))["cells"]
    by_goal = {what: (value, met) for what, value, _, met in found}
    assert by_goal[f"mlp: speed, Trainer ÷ fastest {graph}"] == ("2.00", "yes")
    assert "| Trainer (graph) |" in table.markdown(report_of(rows))


def test_a_ring_of_two_sends_each_byte_once():
    link = communication.Link("one", bandwidth=100.0, latency=1.0)
    assert communication.seconds(50, 2, link) == 0.5 + 2
    assert communication.seconds(100, 4, link) == 1.5 + 6
    assert communication.seconds(100, 4, link, reductions=3) == 1.5 + 18


def test_each_point_of_scaling_is_there_once():
    points = list(scaling.points())
    assert len(points) == len(set(points))
    assert {point.replicas for point in points} == set(scaling.REPLICAS)
    assert {point.variables for point in points} == set(scaling.VARIABLES)
    assert {point.callbacks for point in points} == set(scaling.CALLBACKS)


def test_the_conv_net_is_that_of_the_experiments():
    from trainer_experiments.models import conv_net

    def layers(model):
        drop = {"name", "dtype"}
        return [
            (type(layer), {k: v for k, v in config.items() if k not in drop})
            for layer in model.layers
            for config in [layer.get_config()]
        ]

    assert layers(models.find("conv_net").make()) == layers(conv_net())


@pytest.mark.parametrize("count", [10, 100])
def test_a_model_has_so_many_variables(count):
    assert len(models.find(f"variables:{count}").make().variables) == count


@pytest.mark.parametrize("name", models.MODELS)
def test_arrays_fit_the_model(name):
    spec = models.find(name)
    x, y = spec.arrays(128)
    assert x.shape == (128, *spec.shape)
    assert spec.make()(x[:2]).shape == (2, models.CLASSES)
    assert spec.steps % 100 == 0
    assert spec.examples % (100 * models.BATCH) == 0
    assert 0 <= y.min() <= y.max() < models.CLASSES


def test_a_task_survives_the_command_line():
    task = Task("bare:xla", "mlp", 100, strategy="mirrored", replicas=2)
    assert Task.from_json(task.to_json()) == task
    assert task.form == "xla"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--contenders=nobody", "no contender 'nobody'"),
        ("--contenders=bare:odd", "no contender 'bare:odd'"),
        ("--models=big", "no model 'big'"),
        ("--parts=all", "no 'all'"),
        ("--rounds=0", "at least 1"),
        ("--steps=150", "multiple of 100"),
        ("--examples=100", "multiple of 64"),
    ],
)
def test_mistakes_are_told_at_once(argument, said, capsys):
    with pytest.raises(SystemExit) as raised:
        command.parse([argument])
    assert said in f"{raised.value} {capsys.readouterr().err}"


def test_any_form_of_the_trainer_is_passed_on():
    assert command.parse(["--contenders=trainer:stacked"]).contenders == (
        "trainer:stacked",
    )


def test_the_docs_get_the_table_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(command.DOCS.read_text())
    for text in ("one", "two"):
        command.into_docs(text, page)
    before = command.DOCS.read_text().partition("begin -->")[0]
    found = page.read_text()
    assert found.startswith(before)
    assert "two" in found
    assert "one\n" not in found.removeprefix(before)
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no marks"):
        command.into_docs("one", page)


def test_a_plot_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = report_of(table.rows([measured("trainer", [1.0])]))
    assert "not installed" in plot.write(report, tmp_path / "speed.png")
    assert not (tmp_path / "speed.png").exists()


@pytest.mark.parametrize("steps", [60, 100, 400])
@pytest.mark.parametrize("batches", [100, 110, 7])
def test_a_turn_of_fit_ends_with_an_execution(steps, batches):
    executed = keras_fit.executed_at_once(Task("fit", "mlp", steps), batches)
    assert steps % executed == 0
    assert batches % executed == 0


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_contenders_take_turns(tmp_path):
    run = [sys.executable, "-m", "benchmarks", "--parts=speed"]
    run += ["--models=mlp", "--rounds=2", "--steps=10", "--examples=1280"]
    run += ["--contenders=trainer,bare:stacked,trainer:odd"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [*run, f"--out={tmp_path}", "--note=a test"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "table.json").read_text())
    part = found["speed"]["mlp"]
    assert [row["contender"] for row in part["rows"]] == [
        "trainer",
        "bare:stacked",
    ]
    for row in part["rows"]:
        assert len(row["steps_per_second"]) == 2
        assert row["ratio"] > 0
        assert row["trace_seconds"] > 0
    # What the Trainer says of a form that it does not know.
    assert "jit_compile" in part["left_out"]["trainer:odd"]
    text = (tmp_path / "table.md").read_text()
    assert text.strip() == done.stdout.strip()
    assert "a test" in text
    assert str(tmp_path) not in text
    assert not list(temporary.iterdir())


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
@pytest.mark.parametrize(
    ("strategy", "replicas", "peers"),
    [("multi_worker_mirrored", 1, []), ("mirrored", 2, ["fit"])],
)
def test_all_sides_of_a_strategy_train(strategy, replicas, peers):
    tasks = [
        Task(
            name,
            "mlp",
            10,
            examples=1280,
            strategy=strategy,
            replicas=replicas,
        )
        for name in ("trainer", "distribute", *peers)
    ]
    found, left_out = turns.take_turns(tasks, rounds=1, tell=lambda _: None)
    assert not left_out
    assert [len(one.seconds) for one in found] == [1] * len(tasks)


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_a_step_reduces_the_gradients_and_little_else():
    weights = 4 * (784 * 128 + 128 + 128 * 10 + 10)
    found = communication.measure(names=["mlp"], tell=lambda _: None)
    sides = found["found"]["mlp"]
    assert sides["bare"]["bytes"] == weights
    # One number more: the denominator of the loss.
    assert sides["ours"]["bytes"] == weights + 4


def test_every_module_of_a_contender_is_there():
    folder = pathlib.Path(contenders.__file__).parent
    for entry in contenders.CONTENDERS.values():
        assert (folder / f"{entry.module}.py").is_file()
    for name in contenders.DEFAULT:
        assert contenders.title(name)
