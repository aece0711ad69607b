"""`python -m trainer.tools.runs`: any run directory is read, none changed."""

import fcntl
import json
import os
import re
import runpy
import socket
import sys
import unittest.mock

import pytest


def main(arguments):
    """The exit code of the tool, as `python -m` runs it here."""
    argv = ["runs", *arguments]
    with (
        unittest.mock.patch.object(sys, "argv", argv),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_module("trainer.tools.runs", run_name="__main__")
    return ended.value.code


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


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    adam = "Adam.learning_rate = {}\nTrainer.seed = 1\n"
    command = "python -m trainer --gin_file='a b.gin' --train_steps=8"
    write_run(folder / "a", [3.0, 1.0, 2.0], config=adam.format(0.1))
    write_run(
        folder / "b" / "c", [0.5], config=adam.format(0.01), command=command
    )
    write_run(folder / "d", [None], config=adam.format(0.01), command="make")
    write_run(folder / "e" / "c", [0.1], exit_reason="diverged")
    return folder


def test_the_best_comes_first_with_what_differs(runs, capsys):
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in found] == ["b/c", "a", "e/c", "d"]
    assert found[1]["values"]["val_loss"] == {"10": 3.0, "20": 1.0, "30": 2.0}
    assert found[1]["configuration"]["Adam.learning_rate"] == "0.1"
    assert main(["--mode=max"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [one.split()[0] for one in lines if " done " in one] == [
        *("a", "b/c", "d")
    ]
    assert "Adam.learning_rate" in "".join(lines)
    assert "Trainer.seed" in "".join(lines)  # Not configured in e/c.


def test_a_learning_rate_has_one_name(tmp_path, capsys):
    config = "Adam.learning_rate = 0.002\nTrainer.optimizer = @{}\n"
    flag = "Trainer.learning_rate = {}\n"
    for name, text in {
        "gin": config.format("Adam"),
        "flag": config.format("Adam") + flag.format(0.1),
        "none": config.format("Adam") + flag.format(None),
    }.items():
        write_run(tmp_path / name, [1.0], config=text)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rates = {one.split()[0]: one.split()[-1] for one in lines if "done" in one}
    assert rates == {"gin": "0.002", "flag": "0.1", "none": "0.002"}
    assert "Trainer" not in "".join(lines)


def lines_of(picture):
    """The texts of a picture, and of its lines color and width."""
    text = picture.read_text()
    style = (
        r"fill: none; (?:stroke-dash.*?; )*stroke: (#\w+); stroke-width: (.*?);"
    )
    return re.findall("<!-- (.*?) -->", text), re.findall(style, text)


def test_curves_have_what_differs_as_their_legend(runs, tmp_path, capsys):
    picture = tmp_path / "runs.svg"
    config = "Adam.learning_rate = 0.1\nTrainer.seed = 1\n"
    write_run(runs / "equal", [3.0, 1.0, 2.0], config=config)
    assert main([f"--plot={picture}"]) == 0
    assert "val_loss" in capsys.readouterr().out
    texts, lines = lines_of(picture)
    assert {"val_loss", "Adam.learning_rate, Trainer.seed"} <= {*texts}
    # Two runs have this rate, and differ in nothing.
    assert {"0.1, 1, a", "0.1, 1, equal", "-, -"} <= {*texts}
    # The one below is wider than the one above it.
    widths = {color: float(width) for color, width in reversed(lines)}
    assert widths["#ff7f0e"] > widths["#2ca02c"]


def test_a_picture_shows_training_and_the_first_ten(tmp_path, capsys):
    for number in range(11):
        config = f"Trainer.seed = {number}\n"
        folder = write_run(tmp_path / f"{number}", [number + 1], config=config)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 10, "split": "train", "loss": 0.5}\n')
    picture = tmp_path / "runs.svg"
    assert main([str(tmp_path), f"--plot={picture}", "--log"]) == 0
    assert "--plot draws the first 10 runs." in capsys.readouterr().err
    texts, _ = lines_of(picture)
    assert "val_loss (dotted: in training)" in texts
    assert "Trainer.seed" in texts
    assert "9" in texts
    assert "10" not in texts


def test_any_state_is_read_and_said(tmp_path, capsys):
    write_run(tmp_path / "failed", exit_reason="error", exit_message="no disk")
    for name, host in (
        ("gone", socket.gethostname()),
        ("lives", socket.gethostname()),
        ("far", "elsewhere"),
    ):
        folder = write_run(tmp_path / name, exit_reason="running")
        lock = json.dumps({"host": host, "pid": os.getpid()})
        (folder / "run.lock").write_text(lock)
    lives = (tmp_path / "lives" / "run.lock").open()
    fcntl.flock(lives, fcntl.LOCK_EX)
    torn = write_run(tmp_path / "torn", [1.0, 2.0], split="rare")
    with (torn / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\n[[]]\n{"step": 1e400, "split": "eval"}\n{"step": 3')
    odd = write_run(tmp_path / "odd\x1b[bold]")
    (odd / "run.json").write_text("[" * 10**5)
    (odd / "metrics.jsonl").unlink()
    os.mkfifo(odd / "metrics.jsonl")
    (tmp_path / "loop").symlink_to(tmp_path)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert main([str(tmp_path), "--json"]) == 0
    found = {r["name"]: r for r in json.loads(capsys.readouterr().out)}
    assert {name: run["state"] for name, run in found.items()} == {
        **{"failed": "error", "gone": "killed", "lives": "running"},
        **{"far": "running", "torn": "done", odd.name: "not recorded"},
    }
    assert found["torn"]["values"] == {"val_rare/loss": {"10": 1.0, "20": 2.0}}
    assert main([str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "failed: no disk" in said
    assert "torn: 3 lines of metrics.jsonl are not logs of a run." in said
    assert "odd?[bold]: run.json is not a JSON object." in said
    assert "odd?[bold]: metrics.jsonl cannot be read" in said
    assert "\x1b" not in said
    after = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert after == before


def test_others_names_do_not_control_a_terminal(runs, capsys):
    odd = write_run(runs / "odd\x1b[2J\x07", command="\x1b[2J")
    line = json.dumps({"step": 1, "split": "eval", "\x9b2J": 1.0})
    (odd / "metrics.jsonl").write_text(f"{line}\n")
    for flag in ("--sort_by=nope", "--resume=nope", f"--resume={odd}"):
        assert main([flag]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.isprintable()
        assert "?2J" in said or "?[2J" in said


def test_a_search_follows_no_links_and_ends(runs, tmp_path, capsys):
    write_run(tmp_path / "elsewhere" / "f", [0.0])
    (runs / "out").symlink_to(tmp_path / "elsewhere")
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in found] == ["b/c", "a", "e/c", "d"]
    for name in range(10_010):
        (runs / "z" / str(name)).mkdir(parents=True)
    assert main([]) == 2
    assert "runs has more than 10,000 folders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "Did you mean 'runs'?"),
        (["runs/nothing"], "There is no run in runs/nothing"),
        (["--mode=least"], "invalid choice: 'least'"),
        (["runs", "more"], "Unknown argument more."),
        (["--log"], "--log is for --plot"),
        (["--plot=no/folder.svg"], "--plot=no/folder.svg cannot be written"),
        (["--plot=runs.doc"], "--plot=runs.doc cannot be written"),
        (["--plot=a.svg", "--log", "--sort_by=val_loss_zero"], "not above 0"),
        (["--resume=b/d"], "Did you mean 'b/c'?"),
        (["--resume=b/c", "--model_dir=x"], "--model_dir"),
    ],
)
def test_mistakes_are_a_sentence(runs, capsys, arguments, part):
    (runs / "nothing").mkdir()
    with (runs / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "split": "eval", "loss_zero": 0.0}\n')
    assert main(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert part in said
