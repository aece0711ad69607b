import json
import os
import subprocess

import gin
import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer.cli.run_dir import RunDir, changes_of, git
from trainer.errors import UserError
from trainer.strategy.registry import find_strategy


def make(path, experiment="digits", arguments=("--seed=1",)):
    return RunDir(str(path), experiment=experiment, arguments=list(arguments))


def start(path, **options):
    directory = make(path, **options)
    directory.check()
    directory.start(find_strategy("one_device"))
    return directory


def record(path):
    return json.loads((path / "run.json").read_text())


def test_what_is_written_before_the_first_step(configure, tmp_path):
    configure(IMPORT + "linear.units = 2\n")
    gin.get_configurable("linear")()
    start(tmp_path / "run")
    run = tmp_path / "run"
    assert (run / "config.gin").read_text() == gin.config_str()
    assert "linear.units = 2" in (run / "operative_config.gin").read_text()
    written = record(run)
    assert written["experiment"] == "digits"
    assert written["command"] == "python -m trainer --seed=1"
    assert written["strategy"] == "one_device"
    assert written["exit_reason"] == "running"
    assert written["versions"]["gin"] == "0.5.0"
    assert all(written["versions"].values())
    assert sorted(os.listdir(run)) == [
        "config.gin",
        "operative_config.gin",
        "run.json",
    ]


def test_attempts_are_kept(configure, tmp_path):
    configure()
    start(tmp_path).finish("start_again")
    start(tmp_path)  # Killed: it never finishes.
    start(tmp_path).finish("done")
    written = record(tmp_path)
    assert written["restarts"] == 2
    assert written["exit_reason"] == "done"
    assert written["start"] <= written["end"]
    reasons = [one["exit_reason"] for one in written["previous"]]
    assert reasons == ["start_again", "killed"]
    assert "previous" not in written["previous"][0]


def test_nothing_is_written_at_the_end_without_a_start(tmp_path):
    make(tmp_path).finish("error")
    assert os.listdir(tmp_path) == []


def test_a_torn_record_is_replaced(configure, tmp_path):
    configure()
    (tmp_path / "run.json").write_text('{"experiment": "dig')
    start(tmp_path)
    assert record(tmp_path)["restarts"] == 0


def test_another_experiment_is_refused(configure, tmp_path):
    configure()
    start(tmp_path)
    with pytest.raises(UserError) as error:
        make(tmp_path, experiment="mnist").check()
    assert "'digits'" in str(error.value)
    assert "'mnist'" in str(error.value)


def test_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="leads through a file"):
        make(file).check()
    with pytest.raises(UserError, match="leads through a file"):
        make(file / "run").check()


@pytest.mark.parametrize("path", ["/proc/run", "/sys/run"])
def test_unwritable_even_for_root(configure, path):
    configure()
    with pytest.raises(UserError, match="cannot be written"):
        start(path)
    assert "cannot be written" in str(make(path).why_not_writable())


def test_a_writable_directory_is_left_clean(tmp_path):
    assert make(tmp_path).why_not_writable() is None
    assert os.listdir(tmp_path) == []


def test_a_failure_at_the_end_is_only_logged(configure, tmp_path, caplog):
    configure()
    directory = start(tmp_path / "run")
    os.rename(tmp_path / "run", tmp_path / "away")
    (tmp_path / "run").write_text("")
    directory.finish("done")
    assert "cannot be written" in caplog.text


def test_a_run_that_must_exist(tmp_path):
    with pytest.raises(UserError, match="no run"):
        make(tmp_path / "none").check(must_exist=True)
    make(tmp_path / "none").check()


def test_another_configuration_warns_with_the_lines(
    configure, tmp_path, caplog
):
    text = IMPORT + "linear.units = 2\nMirrored.num_packs = 1\n"
    configure(text, "--train_steps=5", "--seed=1")
    start(tmp_path)
    assert "another configuration" not in caplog.text
    gin.clear_config()
    configure(text.replace("= 1", "= 2"), "--train_steps=9", "--seed=2")
    start(tmp_path)
    assert "- Trainer.seed = 1\n+ Trainer.seed = 2" in caplog.text
    assert "train_steps" not in caplog.text
    assert "num_packs" not in caplog.text


def test_changes_joins_long_statements():
    before = "A.b = \\\n    ['x',\n     'y']\nA.c = 1\n"
    after = "A.b = ['x', 'y']\na/b/A.c = 1\n"
    assert changes_of(before, after) == [
        "- A.c = 1",
        "+ a/b/A.c = 1",
    ]


def test_git_says_commit_and_dirty(tmp_path):
    assert git(str(tmp_path)) is None

    def run(*arguments):
        settings = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    run("init")
    (tmp_path / "file").write_text("1")
    run("add", "file")
    run("commit", "-m", "first")
    head = run("rev-parse", "HEAD")
    assert git(str(tmp_path)) == {"commit": head, "dirty": False}
    (tmp_path / "file").write_text("2")
    assert git(str(tmp_path)) == {"commit": head, "dirty": True}
