"""What a run directory says of a run, its attempts and its end."""

import json
import os
import shutil
import subprocess

import pytest

from tests.helpers import saved_steps
from tests.trainer.cli.tiny import TINY, run_trainer

FAILS = TINY + "run.callbacks = [@Fails()]\n"


def train(folder, *arguments, text=TINY, code=0, **environment):
    """Trains in the run directory `run`; returns its record and stderr."""
    done = run_trainer(
        folder, "--model_dir=run", *arguments, text=text, **environment
    )
    assert done.returncode == code, done.stderr
    return record(folder), done.stderr


def record(folder):
    return json.loads((folder / "run" / "run.json").read_text())


def write(folder, name, text):
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / name).write_text(text)


def test_what_is_written(tmp_path):
    written, _ = train(tmp_path)
    assert written["experiment"] == "tiny"
    assert written["command"] == (
        "python -m trainer --gin_file=tiny.gin --model_dir=run"
    )
    assert written["strategy"] == "one_device"
    assert written["exit_reason"] == "done"
    assert written["start"] <= written["end"]
    assert written["versions"]["gin"] == "0.5.0"
    assert all(written["versions"].values())
    assert sorted(os.listdir(tmp_path / "run")) == [
        "config.gin",
        "operative_config.gin",
        "run.json",
    ]


def test_checkpoints_that_cannot_be_listed_do_not_change_how_a_run_ends(
    tmp_path,
):
    # It leads to itself.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to("checkpoints")
    _, log = train(tmp_path, text=FAILS, code=75, FAIL_WITH="start_again")
    assert "Traceback" not in log
    assert "nothing was saved" not in log


def test_attempts_are_kept(tmp_path):
    train(tmp_path, text=FAILS, code=75, FAIL_WITH="start_again")
    # A run that is killed leaves its record as it was.
    killed = record(tmp_path) | {"exit_reason": "running"}
    write(tmp_path, "run.json", json.dumps(killed | {"previous": [killed]}))
    written, _ = train(tmp_path)
    assert (written["restarts"], written["exit_reason"]) == (2, "done")
    assert written["previous"][-1]["exit_reason"] == "killed"
    assert "previous" not in written["previous"][-1]


@pytest.mark.parametrize(
    ("name", "text"),
    [("run.json", '{"experiment": "dig'), ("config.gin", "\udc80")],
)
def test_what_is_damaged_is_replaced(tmp_path, name, text):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    written, _ = train(tmp_path)
    assert written["restarts"] == 0
    assert "batch_size" in (tmp_path / "run" / "config.gin").read_text()


def test_a_failure_to_record_the_end_is_only_logged(tmp_path):
    done = run_trainer(
        tmp_path, "--model_dir=run", text=FAILS, FAIL_WITH="moved_away"
    )
    assert done.returncode == 0, done.stderr
    assert "model_dir run cannot be written" in done.stderr


def test_another_configuration_warns_with_the_lines(tmp_path):
    text = TINY + "Mirrored.all_reduce = 'auto'\nSGD.weight_decay = None\n"
    _, said = train(tmp_path, "--seed=1", text=text)
    assert "a different configuration" not in said
    with (tmp_path / "run" / "config.gin").open("a") as file:
        file.write("Others.title = '\x1b]0;odd\x07'\n")
    other = text.replace("'auto'", "'reduce_to_one'")
    other = other.replace("SGD.weight_decay", "sgd/SGD.weight_decay")
    flags = ("--seed=2", "--train_steps=9", "--allow_unused_bindings")
    _, said = train(tmp_path, *flags, text=other)
    _, _, said = said.partition("a different configuration")
    assert "- Trainer.seed = 1\n+ Trainer.seed = 2" in said
    assert "- SGD.weight_decay = None\n" in said
    assert "- Others.title = '?]0;odd?'\n" in said
    assert "+ sgd/SGD.weight_decay = None\n" in said
    assert "train_steps" not in said.partition("without any effect")[0]
    assert "all_reduce" not in said.partition("without any effect")[0]


@pytest.mark.long
def test_a_checkpoint_of_another_run_is_a_warning(tmp_path):
    text = TINY + "run.callbacks = [@Checkpoint()]\nCheckpoint.every = 4\n"
    said = "seems to be from a different run"
    train(tmp_path, "--train_steps=12", text=text)
    other = tmp_path / "run" / "checkpoints" / "step_00000012"
    other.rename(tmp_path / other.name)
    shutil.rmtree(tmp_path / "run")
    text = text.replace("MeanSquaredError", "MeanAbsoluteError")
    train(tmp_path, text=text)
    # Its own, after a change of the configuration.
    _, log = train(tmp_path, "--seed=1", "--train_steps=10", text=text)
    assert "a different configuration" in log
    assert said not in log
    (tmp_path / other.name).rename(other)
    _, log = train(tmp_path, "--seed=1", "--train_steps=16", text=text)
    assert f"The checkpoint of step 12 {said}" in log
    assert saved_steps(tmp_path / "run")[-1] == 16


def test_git_says_commit_and_dirty(tmp_path):
    def git(*arguments):
        settings = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    assert train(tmp_path)[0]["git"] is None
    git("init")
    git("add", "tiny.gin")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert train(tmp_path)[0]["git"] == {"commit": head, "dirty": False}
    text = f"# Another one.\n{TINY}"
    written, _ = train(tmp_path, text=text)
    assert written["git"] == {"commit": head, "dirty": True}
