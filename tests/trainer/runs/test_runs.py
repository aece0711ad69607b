"""`python -m trainer.runs`: any run directory is read, and none changed."""

import io
import json
import os
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from tests.conftest import ROOT
from tests.trainer.cli.tiny import TINY, run_trainer
from trainer.runs.comparing import compare
from trainer.runs.finding import find
from trainer.runs.main import main
from trainer.runs.plot import write_plot
from trainer.runs.reading import read_run
from trainer.runs.table import print_table, sparkline


def write_run(folder, values=(), *, split="eval", config="", **record):
    """A run directory as a run leaves it."""
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"step": 10 * (i + 1), "split": split, "loss": value})
        for i, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{x}\n" for x in lines))
    (folder / "config.gin").write_text(config)
    record = {"exit_reason": "done", "exit_message": None} | record
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def lock(folder, **holder):
    held = {"host": socket.gethostname(), "pid": os.getpid(), "start": None}
    (folder / "run.lock").write_text(json.dumps(held | holder))


def read(folder):
    return {n: read_run(n, p) for n, p in find(str(folder)).runs.items()}


def snapshot(folder):
    return {
        path: (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in folder.rglob("*")
    }


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    adam = "Adam.learning_rate = {}\nTrainer.seed = 1\n"
    write_run(folder / "a", [3.0, 1.0, 2.0], config=adam.format(0.1))
    write_run(folder / "b" / "c", [0.5], config=adam.format(0.01))
    write_run(folder / "d", [None], config=adam.format(0.01))
    return folder


def test_the_best_comes_first_with_what_differs(runs, capsys):
    before = snapshot(runs)
    assert main([str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in found["runs"]] == ["b/c", "a", "d"]
    assert found["runs"][1]["metrics"]["val_loss"] == {
        **{"best": 1.0, "best_step": 20},
        **{"last": 2.0, "last_step": 30},
    }
    assert found["differs"] == ["Adam.learning_rate"]
    values = [run["differences"]["Adam.learning_rate"] for run in found["runs"]]
    assert values == ["0.01", "0.1", "0.01"]
    assert main([str(runs), "--mode=max"]) == 0
    rows = [
        line.split()[0]
        for line in capsys.readouterr().out.splitlines()
        if " done " in line
    ]
    assert rows == ["a", "b/c", "d"]
    assert snapshot(runs) == before


def test_a_run_that_has_diverged_comes_after_all_others_with_a_value(runs):
    write_run(runs / "e", [0.1], exit_reason="diverged")
    names = [run.name for run in compare(list(read(runs).values())).runs]
    assert names == ["b/c", "a", "e", "d"]


def test_values_have_the_names_that_monitors_use(tmp_path):
    for split in ("train", "eval", "rare"):
        write_run(tmp_path / split, [1.0], split=split)
    found = [name for run in read(tmp_path).values() for name in run.series]
    assert sorted(found) == ["loss", "val_loss", "val_rare/loss"]


def damage(folder):
    """Directories in every state, by what is said of them."""
    write_run(folder / "failed", exit_reason="error", exit_message="no disk")
    running = {"exit_reason": "running"}
    write_run(folder / "killed", **running)
    lock(write_run(folder / "gone", **running), pid=2**22 + 1)
    lock(write_run(folder / "reused", **running), start="2001-01-01T00:00:00Z")
    lock(write_run(folder / "far", **running), host="elsewhere")
    lock(write_run(folder / "lives", **running))
    torn = write_run(folder / "torn", [1.0, 2.0])
    with (torn / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\n[[]]\n{"step": 1e400, "split": "eval"}\n{"step": 3')
    (write_run(folder / "not_json") / "run.json").write_text("[" * 10**5)
    (write_run(folder / "other") / "run.json").write_text('{"exit_reason": 3}')
    odd = write_run(folder / "odd")
    (odd / "config.gin").write_bytes(b"\xff")
    (odd / "metrics.jsonl").unlink()
    os.mkfifo(odd / "metrics.jsonl")
    (folder / "early").mkdir()
    (folder / "early" / "run.lock").write_text("")
    (folder / "python" / "checkpoints" / "step_00000012").mkdir(parents=True)
    (folder / "nothing").mkdir()
    (folder / "loop").symlink_to(folder)


def test_any_state_is_read_and_said(tmp_path, capsys):
    damage(tmp_path)
    before = snapshot(tmp_path)
    found = read(tmp_path)
    states = {name: run.state for name, run in found.items()}
    assert states == {
        **{"failed": "error", "killed": "killed", "gone": "killed"},
        **{"reused": "killed", "far": "running", "lives": "running"},
        **{"torn": "done", "not_json": "not recorded"},
        **{"other": "not recorded", "odd": "done"},
        **{"early": "not recorded", "python": "not recorded"},
    }
    assert found["torn"].series == {"val_loss": {10: 1.0, 20: 2.0}}
    assert found["python"].step == 12
    assert main([str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        "failed: no disk",
        "far: whether it still runs can only be told on its host, elsewhere.",
        "torn: the last line of metrics.jsonl is torn, and is left out",
        "torn: 3 lines are not logs of a run in metrics.jsonl.",
        "not_json: run.json cannot be read: it is not JSON.",
        "other: run.json is not the record of a run.",
        "odd: metrics.jsonl cannot be read:",
        "odd: config.gin cannot be read: it is not text.",
        "python: no metrics.jsonl: @JsonLines() writes it.",
        "No run in: nothing.",
    ):
        assert part in said
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["no_such"], ["no_such", "no folder"]),
        (["run"], ["Did you mean 'runs'?"]),
        (["gs://bucket/runs"], ["not a local folder"]),
        (["runs/nothing"], ["There is no run in runs/nothing"]),
        (["runs", "--sort_by=val_los"], ["Did you mean 'val_loss'?"]),
        (["runs", "--sort_by=val_x"], ["'val_x'", "--mode=min"]),
        (["runs", "--mode=least"], ["--mode=least", "min"]),
        (["runs", "--jsn"], ["Did you mean '--json'?"]),
        (["runs", "more"], ["'more'"]),
    ],
)
def test_mistakes_are_a_sentence(
    runs, tmp_path, monkeypatch, capsys, arguments, parts
):
    line = '{"step": 1, "split": "eval", "x": 1.0}\n'
    (runs / "a" / "metrics.jsonl").write_text(line)
    (runs / "nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_and_control_no_terminal(runs, width):
    name = "\x1b]0;evil\x07[bold]"
    config = "A.b = '\x1b'"
    write_run(runs / name, [0.1], exit_reason="er\x1b[2J", config=config)
    console = Console(width=width, record=True, file=io.StringIO())
    print_table(compare(list(read(runs).values())), console)
    text = console.export_text()
    assert "[bold]" in text.replace("\n", "")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width


def test_sparklines():
    values = dict(enumerate([0.0, 1.0, float("nan"), 7.0]))
    assert sparkline(values, 4) == "▁▂ █"
    assert sparkline(values, 2) == "▁█"
    assert sparkline({1: 5.0}, 3) == "▁"
    assert sparkline({1: float("nan")}, 3) == ""


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_it_is_light(runs):
    code = (
        "import sys, trainer.runs.main as m; m.main(sys.argv[1:]); "
        "print('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.long
def test_a_plot_is_a_picture(runs, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "runs.png"
    said = write_plot(compare(list(read(runs).values())), str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "val_loss of 3 runs" in said


@pytest.mark.long
def test_runs_of_the_trainer_are_read(tmp_path):
    text = TINY + "run.callbacks = [@JsonLines(), @Checkpoint()]\n"
    for rate in ("0.1", "0.01"):
        done = run_trainer(
            tmp_path,
            f"--model_dir=runs/{rate}",
            f"--gin.SGD.learning_rate={rate}",
            text=text,
        )
        assert done.returncode == 0, done.stderr
    found = read(tmp_path / "runs")
    assert {run.state for run in found.values()} == {"done"}
    assert {run.step for run in found.values()} == {8}
    comparison = compare(list(found.values()))
    assert comparison.metric == "val_loss"
    ((name, values),) = comparison.differences.items()
    assert name.endswith("SGD.learning_rate")
    assert values == [run.name for run in comparison.runs]


def test_what_the_names_of_all_runs_tell_has_no_column(tmp_path):
    for rate in ("0.1", "0.01"):
        config = f"Adam.learning_rate = {rate}\nTrainer.seed = {rate[-2:]}\n"
        write_run(tmp_path / f"learning_rate={rate},x=1", [1.0], config=config)
    console = Console(width=120, record=True, file=io.StringIO())
    comparison = compare(list(read(tmp_path).values()))
    print_table(comparison, console)
    text = console.export_text()
    assert "Trainer.seed" in text
    assert "Adam.learning_rate" not in text
    assert len(comparison.differences) == 2
