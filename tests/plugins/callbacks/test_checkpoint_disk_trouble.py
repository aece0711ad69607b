"""A disk that is full, read-only or gone harms no run that can go on."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing import event_accumulator

from trainer.checkpoint import storage

# tests/faults/test_disks.py has the ordinary suite's full and lost disks.
pytestmark = pytest.mark.long
HERE = pathlib.Path(__file__).parent
CONFIG = """
import disk_trouble

Trainer.model = @small_model
Trainer.loss = 'mse'
Trainer.data = @small_data
Trainer.batch_size = 8
run.log_every = 1
run.eval_every = 50
run.steps_per_loop = 1
Checkpoint.every = 5
run.callbacks = [
    @JsonLines(), @TensorBoard(), @Trouble(), @Checkpoint(),
]
"""


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"needs leave to mount: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def train(root, model_dir, at, steps=100, *arguments):
    folder = model_dir.parent.parent
    (folder / "trouble.gin").write_text(CONFIG)
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "trainer", "--gin_file=trouble.gin"),
            f"--model_dir={model_dir}",
            f"--train_steps={steps}",
            f"--gin.Trouble.at={at}",
            *arguments,
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{root}"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    done.said = " ".join(done.stderr.split())
    return done


def assert_ended(done, code, *words):
    """With a sentence, if it failed, and never with a traceback."""
    assert done.returncode == code, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.said, done.stderr[-4000:]


def steps_in(model_dir):
    return [
        storage.step_of(path)
        for path in storage.listing(str(model_dir / "checkpoints"))
        if storage.find_fault(path) is None
    ]


def lines_in(model_dir):
    text = (model_dir / "metrics.jsonl").read_text()
    return [
        (line["step"], line["split"])
        for line in map(json.loads, text.splitlines())
    ]


def expected_lines(first, last):
    lines = [(step, "train") for step in range(first, last + 1)]
    for step in (50, 100):
        if (step, "train") in lines:
            lines.insert(lines.index((step, "train")) + 1, (step, "eval"))
    return lines


def losses_in_tensorboard(model_dir):
    events = event_accumulator.EventAccumulator(
        str(model_dir / "tensorboard" / "train"),
        size_guidance={"tensors": 0},
    ).Reload()
    return {event.step for event in events.Tensors("loss")}


def test_a_full_disk_that_is_freed_again(root, disk):
    model_dir = disk / "run"
    done = train(root, model_dir, {12: "fill", 80: "free"})
    assert_ended(
        done,
        0,
        "A checkpoint could not be saved",
        "metrics.jsonl cannot be written; ",
        "TensorBoard's files cannot be written; ",
        "No space left on device",
    )
    # While it was full the last checkpoint stayed, and saves came again.
    assert "before free: [5, 10]" in done.stdout
    assert steps_in(model_dir) == [90, 95, 100]
    assert sorted(os.listdir(model_dir / "checkpoints")) == [
        f"step_{step:08d}" for step in (90, 95, 100)
    ]
    assert lines_in(model_dir) == expected_lines(1, 100)
    assert losses_in_tensorboard(model_dir) == set(range(1, 101))
    record = json.loads((model_dir / "run.json").read_text())
    assert record["exit_reason"] == "done"


@pytest.mark.long
def test_a_disk_that_stays_full(root, disk):
    model_dir = disk / "run"
    done = train(root, model_dir, {12: "fill"})
    assert_ended(
        done,
        2,
        "The end of the run, step 100, could not be saved",
        "No space left on device",
        f"Newest checkpoint in {model_dir}/checkpoints: 10.",
    )
    assert steps_in(model_dir) == [5, 10]
    (disk / "ballast").unlink()
    assert_ended(train(root, model_dir, {}), 0)
    assert steps_in(model_dir)[-1] == 100
    assert lines_in(model_dir) == expected_lines(1, 100)
    assert losses_in_tensorboard(model_dir) == set(range(1, 101))


def test_lines_that_wait_survive_a_kill(root, tmp_path):
    """Checkpoints hold them: the steps before are not repeated."""
    model_dir = tmp_path / "folder" / "run"
    model_dir.parent.mkdir()
    trouble = {12: "hide_metrics", 18: "show_metrics_and_die"}
    done = train(root, model_dir, trouble, 40)
    assert done.returncode == -signal.SIGKILL, done.stderr[-4000:]
    assert steps_in(model_dir) == [5, 10, 15]
    assert lines_in(model_dir) == expected_lines(1, 11)
    assert_ended(train(root, model_dir, {}, 40), 0)
    assert lines_in(model_dir) == expected_lines(1, 40) + [(40, "eval")]


def test_a_disk_that_becomes_read_only(root, disk):
    model_dir = disk / "run"
    done = train(
        root,
        model_dir,
        {12: "read_only"},
        100,
        "--gin.run.callbacks=[@JsonLines(), @Trouble(), @Checkpoint()]",
    )
    assert_ended(
        done,
        2,
        "The end of the run, step 100, could not be saved",
        "Read-only file system",
        f"Newest checkpoint in {model_dir}/checkpoints: 10.",
    )
    assert steps_in(model_dir) == [5, 10]
    assert lines_in(model_dir)[:10] == expected_lines(1, 10)
    subprocess.run(["umount", disk], check=True)
    assert_ended(train(root, model_dir, {}), 0)
    assert lines_in(model_dir) == expected_lines(1, 100)


@pytest.mark.parametrize(
    "kind", ["move_away", pytest.param("delete", marks=pytest.mark.long)]
)
def test_a_directory_that_vanishes_is_made_anew(root, tmp_path, kind):
    model_dir = tmp_path / "folder" / "run"
    model_dir.parent.mkdir()
    done = train(root, model_dir, {12: kind}, 40)
    assert_ended(done, 0, "checkpoints has vanished; it is created again")
    assert steps_in(model_dir) == [30, 35, 40]
    assert lines_in(model_dir) == expected_lines(12, 40) + [(40, "eval")]
    if kind == "move_away":
        moved = tmp_path / "folder" / "run-moved"
        assert steps_in(moved) == [5, 10]
        assert lines_in(moved) == expected_lines(1, 11)
