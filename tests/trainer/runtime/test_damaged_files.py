"""Damaged files in a run directory are set aside, and the run continues."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers import lines, saved_steps
from tests.sets import ordinary
from tests.trainer.runtime.test_links import train
from trainer import UserError
from trainer_plugins import JsonLines

FILES = ["run.json", "config.gin", "metrics.jsonl", "skipped_batches.json"]


def damage(path, kind):
    """Puts something else where a file was."""
    if path.exists() and not path.is_dir():
        path.unlink()
    {
        "FIFO": os.mkfifo,
        "directory": os.mkdir,
        "device": lambda p: os.mknod(p, 0o20600, os.makedev(1, 5)),
        "device by a link": lambda p: os.symlink("/dev/zero", p),
        "not UTF-8": lambda p: p.write_bytes(b"\xff\xfe\x00\n"),
        "deep": lambda p: p.write_bytes(b"[" * 100_000),
        "list": lambda p: p.write_bytes(b"[]\n"),
    }[kind](path)


@pytest.mark.parametrize(
    "kind",
    ordinary(
        [
            "FIFO",
            "directory",
            "device",
            "device by a link",
            "not UTF-8",
            "deep",
        ],
        ["FIFO", "deep"],
    ),
)
def test_a_run_goes_on(root, tmp_path, kind):
    """Through the command line, with all of its files damaged at once."""
    command = [
        *(sys.executable, "-m", "trainer"),
        f"--gin_file={root}/experiments/digits.gin",
        f"--model_dir={tmp_path}/run",
        "--gin.Checkpoint.every=10",
        "--gin.run.log_every=10",
        "--gin.run.callbacks=[@JsonLines(), @TensorBoard(), @Checkpoint()]",
    ]

    def go(steps):
        return subprocess.run(
            [*command, f"--train_steps={steps}"],
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert go(10).returncode == 0
    run = tmp_path / "run"
    for name in [*FILES, "operative_config.gin"]:
        if (name, kind) != ("metrics.jsonl", "device by a link"):
            damage(run / name, kind)
    shutil.rmtree(run / "train")
    (run / "train").write_bytes(b"in the way")
    done = go(20)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    for name in ("run.json", "skipped_batches.json", "train"):
        assert f"{run / name} cannot be used" in said
        assert os.path.lexists(run / f"{name}.damaged-1")
    assert json.loads((run / "run.json").read_text())["exit_reason"] == "done"
    assert lines(run)[-1]["step"] == 20
    assert saved_steps(run)[-1] == 20
    assert any((run / "train").iterdir())


def test_a_file_in_the_place_of_checkpoints(tmp_path, caplog):
    (tmp_path / "checkpoints").write_text("in the way")
    train(tmp_path, 4)
    assert saved_steps(tmp_path) == [2, 4]
    assert "checkpoints cannot be used: it is not a directory" in caplog.text


def test_a_file_that_cannot_be_set_aside_is_named(tmp_path):
    """A file system is mounted in its place."""
    (tmp_path / "metrics.jsonl").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", tmp_path / "metrics.jsonl"],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("needs permission to mount")
    try:
        with pytest.raises(UserError, match=r"metrics.jsonl cannot be used"):
            train(tmp_path, 2, JsonLines())
    finally:
        subprocess.run(["umount", tmp_path / "metrics.jsonl"], check=True)
