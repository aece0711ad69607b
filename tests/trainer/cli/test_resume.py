"""`--resume=NAME`, and a command line that says nothing."""

import json

import pytest

from tests.trainer.cli.tiny import TINY, run_trainer
from trainer.cli import flags, resume
from trainer.cli.main import main
from trainer.errors import UserError
from trainer.launch import arguments as launch


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Some runs below runs/."""
    monkeypatch.chdir(tmp_path)

    def write(name, command):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps({"command": command}))

    for name in ("digits/1", "digits/2", "mnist/1", "a b"):
        command = "python -m trainer --gin_file='a b.gin' --train_steps=8"
        write(name, command)
    command = "python -m trainer --gin_file=a.gin --model_dir old --gin.A.x=1"
    write("rates/x=1", command)
    write("odd", "make all")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("digits/2", "runs/digits/2"),
        ("2", "runs/digits/2"),
        ("a b", "runs/a b"),
        ("runs/mnist/1/", "runs/mnist/1"),
        ("x=1", "runs/rates/x=1"),
    ],
)
def test_names_are_found_by_their_end(runs, name, path):
    found = resume.expand([f"--resume={name}", "--train_steps=9"])
    assert found[-2:] == ["--train_steps=9", f"--model_dir={path}"]
    assert flags.parse(found).model_dir == path
    assert "--train_steps=8" not in found


def test_another_way_to_say_how_long_replaces_the_first(runs, capsys):
    found = resume.expand(["--resume", "digits/1", "--epochs=2"])
    assert found == [
        *("--gin_file=a b.gin", "--epochs=2", "--model_dir=runs/digits/1")
    ]
    assert "resumes: python -m trainer '--gin_file=a b.gin'" in (
        capsys.readouterr().err
    )
    assert launch.parse(["--", "--resume=2"]).arguments[-1] == (
        "--model_dir=runs/digits/2"
    )


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--resume=1"], ["may be mnist/1, digits/1"]),
        (["--resume=digts/2"], ["Did you mean 'digits/2'?", "There: "]),
        (["--resume=odd"], ["runs/odd/run.json does not say"]),
        (["--resume=2", "--model_dir=x"], ["--model_dir"]),
        (["--resume=2", "--resume=1"], ["twice"]),
        (["--flagfile=flags"], ["command line"]),
    ],
)
def test_mistakes_are_a_sentence(runs, given, parts, capsys):
    (runs / "flags").write_text("--resume=2\n")
    assert main(given) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert all(part in said for part in parts), said


def test_without_runs_that_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such run below runs"):
        resume.expand(["--resume=a"])


def test_no_arguments_say_what_to_do_next(capsys):
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 6
    for command in ("--gin_file=", "trainer.new", "--help", "trainer.runs"):
        assert any(command in line for line in lines)


@pytest.mark.long
def test_a_resumed_run_goes_on(tmp_path):
    text = TINY + "run.callbacks = [@Checkpoint()]\n"
    assert run_trainer(tmp_path, "--seed=3", text=text).returncode == 0
    (path,) = (tmp_path / "runs" / "tiny").iterdir()
    for steps in (12, 16):
        done = run_trainer(
            tmp_path,
            f"--resume={path.name}",
            f"--train_steps={steps}",
            text=text,
        )
        assert done.returncode == 0, done.stderr
    assert (path / "checkpoints" / "step_00000016").is_dir()
    command = json.loads((path / "run.json").read_text())["command"]
    assert "--seed=3" in command
    assert "--resume" not in command
    assert command.count("--train_steps") == 1
