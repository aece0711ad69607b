"""Damaged files in a run directory are set aside, and the run continues."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import gin
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.helpers import linear, lines, make_trainer, saved_steps
from tests.sets import one_in, ordinary
from tests.trainer.runtime.test_links import train
from tests.trainer.runtime.test_schema import JSON
from trainer import UserError
from trainer.best_checkpoint import Best
from trainer.checkpoint import storage
from trainer.cli.run_dir import RunDir
from trainer.loop.monitor import Monitor
from trainer.loop.rollback import Skipped
from trainer.runtime import exit_report
from trainer.runtime.run_status import RunIsOver
from trainer.sidecar_evaluator import follow
from trainer.strategy.registry import find_strategy
from trainer_plugins import JsonLines

CONTENTS = [
    b"",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"{" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"null",
    b"[]",
    b"7",
    b'"text"',
    b"9" * 5000,
    b"NaN",
    b"\x00" * 100,
    b'{"previous": 7}',
    b'{"previous": [7]}',
    b'{"experiment": []}',
    b'{"skipped": {}}',
    b'{"skipped": [{"batch": -1}]}',
    b'{"skipped": [{"batch": true, "batch_size": 8}]}',
    b'{"step": "1"}\n',
    b'{"step": 1}\n\xff\n{"step": 2}\n',
]
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


def start(path):
    directory = RunDir(str(path), experiment="digits", arguments=[])
    directory.check()
    directory.start(find_strategy("one_device"))
    return json.loads((path / "run.json").read_text())


BYTES = st.binary(max_size=40) | JSON.map(lambda v: json.dumps(v).encode())


def each_content(test):
    for content in CONTENTS:
        test = example(content=content)(test)
    quiet = [HealthCheck.function_scoped_fixture]
    return settings(
        max_examples=40, deadline=None, suppress_health_check=quiet
    )(given(content=BYTES)(test))


@each_content
def test_any_content_of_records(tmp_path, content):
    """The run neither fails nor refuses, and the damaged file is kept."""
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    gin.clear_config()
    for name in ("run.json", "config.gin", "operative_config.gin"):
        (tmp_path / name).write_bytes(content)
    record = start(tmp_path)
    assert record["exit_reason"] == "running"
    assert start(tmp_path)["restarts"] == record["restarts"] + 1
    RunIsOver(str(tmp_path), start_seconds=0)()


@each_content
def test_any_content_of_metrics(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    callback = JsonLines()
    callback.run = SimpleNamespace(
        step=7,
        fired_step=7,
        taken_back=(),
        model_dir=str(tmp_path),
        plugin=SimpleNamespace(is_chief=True),
    )
    callback.setup()
    callback.on_train_begin()
    callback.on_log(8, "train", {"loss": 1.0})
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found[-1] == {"step": 8, "split": "train", "loss": 1.0}
    aside = list(tmp_path.glob("*.damaged-1"))
    lost = content.splitlines()
    if content.endswith(b"\n") and len(found) <= len(lost):
        later = [line for line in lost if is_line(line)]
        assert len(later) == len(lost) or aside[0].read_bytes() == content
    for left in (path, *aside):
        left.unlink()


def is_line(line):
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return isinstance(step, int | float)


@each_content
def test_any_content_of_other_files(tmp_path, content):
    for name in ("skipped_batches.json", "best.json", "report.json"):
        (tmp_path / name).write_bytes(content)
    skipped = Skipped(str(tmp_path), 8)
    skipped.mend()
    assert all(isinstance(n, int) and n >= 0 for n in skipped.positions)
    skipped.add({"step": 1, "batch": 1, "batch_size": 8})
    assert Skipped(str(tmp_path), 8).positions[-1] == 1
    best = Best(str(tmp_path), Monitor("val_loss"))
    best.commit()
    exit_report.read(str(tmp_path / "report.json"), pid=1)
    for path in tmp_path.iterdir():
        path.unlink()


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
    shutil.rmtree(run / "tensorboard")
    (run / "tensorboard").write_bytes(b"in the way")
    done = go(20)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    for name in ("run.json", "skipped_batches.json", "tensorboard"):
        assert f"{run / name} cannot be used" in said
        assert os.path.lexists(run / f"{name}.damaged-1")
    assert json.loads((run / "run.json").read_text())["exit_reason"] == "done"
    assert lines(run)[-1]["step"] == 20
    assert saved_steps(run)[-1] == 20
    assert any((run / "tensorboard" / "train").iterdir())


@pytest.mark.parametrize("kind", ["FIFO", "device by a link", "directory"])
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "state.json",
        "arrays.index",
        "arrays.data-00000-of-00001",
    ],
)
def test_a_checkpoint_never_hangs(tmp_path, kind, name):
    for step in (1, 2):
        storage.save(str(tmp_path), storage.Snapshot(step, {"a": 1.0}, {}))
    damage(tmp_path / "step_00000002" / name, kind)
    assert storage.load_newest(str(tmp_path)).step == 1


def test_a_file_in_the_place_of_checkpoints(tmp_path, caplog):
    (tmp_path / "checkpoints").write_text("in the way")
    train(tmp_path, 4)
    assert saved_steps(tmp_path) == [2, 4]
    assert "checkpoints cannot be used: it is not a directory" in caplog.text


@pytest.mark.parametrize(
    "kind", one_in(4, ["FIFO", "directory", "list", "not UTF-8"])
)
def test_the_evaluator_starts_over(tmp_path, caplog, kind):
    train(tmp_path, 2)
    (tmp_path / "best").mkdir()
    damage(tmp_path / "best" / "best.json", kind)
    values = follow(make_trainer(linear).new_run(str(tmp_path)), train_steps=2)
    assert values["best_step"] == 2
    assert "best.json cannot be used" in caplog.text
    record = json.loads((tmp_path / "best" / "best.json").read_text())
    assert record["step"] == 2


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
