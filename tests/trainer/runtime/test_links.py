"""Nothing outside a run directory is removed or written, links or not."""

import itertools
import os
import shutil
import subprocess
import sys

import keras
import pytest

from tests.helpers import linear, make_trainer, read_lines, saved_steps
from tests.sets import ordinary
from trainer import UserError
from trainer_plugins import Checkpoint, Export, JsonLines, TensorBoard


def train(model_dir, steps, *callbacks):
    trainer = make_trainer(linear)
    trainer.train(
        steps,
        model_dir=str(model_dir),
        callbacks=[*callbacks, Checkpoint(every=2, keep_last=2)],
        log_every=2,
    )
    return trainer


def everything_in(folder):
    """Each path below a folder, with what is in it and who it is."""
    return {
        str(path): (
            path.lstat().st_ino,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps, to copy."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, 4)
    return folder


@pytest.fixture
def outside(tmp_path, trained):
    """A folder that is not the run's; it must stay as it is."""
    folder = tmp_path / "outside"
    shutil.copytree(trained, folder / "run")
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "deeper" / "file").write_text("dear to somebody")
    before = everything_in(folder)
    yield folder
    assert everything_in(folder) == before


NAMES = (
    "step_00000003",
    "step_00000004",
    "step_00000004.old",
    "tmp_x",
    "step_00000099",
)
TARGETS = ("deep", "nowhere", "deep/deeper/file")


@pytest.mark.parametrize(
    ("name", "target"),
    ordinary(
        itertools.product(NAMES, TARGETS),
        # Each of both.
        zip(NAMES, (*TARGETS, *TARGETS[:2]), strict=True),
    ),
)
def test_a_link_of_any_name_among_checkpoints(tmp_path, outside, name, target):
    directory = tmp_path / "run" / "checkpoints"
    train(tmp_path / "run", 2)
    (directory / name).symlink_to(outside / target)
    train(tmp_path / "run", 6)
    assert saved_steps(tmp_path / "run")[:2] == [4, 6]
    links = [p.name for p in directory.iterdir() if p.is_symlink()]
    assert links == ["step_00000099"] * (name == "step_00000099")


def test_a_link_that_may_be_the_only_checkpoint_is_refused(tmp_path, outside):
    directory = tmp_path / "run" / "checkpoints"
    directory.mkdir(parents=True)
    (directory / "step_00000004").symlink_to(outside / "deep")
    with pytest.raises(
        UserError, match=r"None of the checkpoints in .* \(1 damaged\)"
    ):
        train(tmp_path / "run", 6)


PLACES = (
    ("checkpoints", Checkpoint),
    ("metrics.jsonl", JsonLines),
    ("train", TensorBoard),
    ("eval", TensorBoard),
    # Where earlier versions wrote, and such a run goes on.
    ("tensorboard/eval", TensorBoard),
    ("export", Export),
)


@pytest.mark.parametrize(
    ("name", "callback", "exists"),
    ordinary(
        [(*place, exists) for place in PLACES for exists in (True, False)],
        [(*place, i % 2 == 0) for i, place in enumerate(PLACES)],
    ),
)
def test_a_link_where_a_run_writes_is_refused(
    tmp_path, outside, name, callback, exists
):
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(outside / ("deep" if exists else "nowhere"))
    with pytest.raises(UserError, match="is a symbolic link to") as error:
        train(tmp_path / "run", 2, *[callback()] * (callback != Checkpoint))
    assert str(path) in str(error.value)
    assert "--model_dir" in str(error.value)


def test_a_directory_that_becomes_a_link_is_left_alone(tmp_path, outside):
    """Saves then fail, as on a disk that is gone."""

    directory = tmp_path / "run" / "checkpoints"

    class Swap(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not directory.is_symlink():
                directory.rename(tmp_path / "away")
                directory.symlink_to(outside / "deep")

    train(tmp_path / "run", 2)
    with pytest.raises(UserError, match="could not be saved"):
        train(tmp_path / "run", 4, Swap())


def test_the_run_directory_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    train(tmp_path / "run", 4, JsonLines(), TensorBoard(), Export())
    train(tmp_path / "run", 6, JsonLines(), TensorBoard(), Export())
    assert saved_steps(tmp_path / "disk") == [4, 6]
    assert (tmp_path / "run").is_symlink()


def test_leftovers_of_exports_that_are_links(tmp_path, outside):
    directory = tmp_path / "run" / "export"
    directory.mkdir(parents=True)
    for name in ("saved_model", "saved_model.new", "saved_model.old"):
        (directory / name).symlink_to(outside / "deep")
    for name in ("model.keras", "model.keras.new"):
        (directory / name).symlink_to(outside / "deep" / "deeper" / "file")
    train(tmp_path / "run", 2, Export())
    assert sorted(os.listdir(directory)) == ["model.keras", "saved_model"]
    assert not any(path.is_symlink() for path in directory.iterdir())


def test_a_file_with_another_name_elsewhere_is_not_added_to(tmp_path, outside):
    """Such as after `cp -al` of a run."""
    with (outside / "metrics.jsonl").open("w") as file:
        file.write('{"step": 1, "split": "train", "loss": 1.0}\n')
    (tmp_path / "run").mkdir()
    os.link(outside / "metrics.jsonl", tmp_path / "run" / "metrics.jsonl")
    before = (outside / "metrics.jsonl").read_bytes()
    train(tmp_path / "run", 4, JsonLines())
    assert (outside / "metrics.jsonl").read_bytes() == before
    assert read_lines(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 4
    (outside / "metrics.jsonl").unlink()


def test_the_log_folder(root, tmp_path, outside):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(outside / "deep")
    done = subprocess.run(
        [sys.executable, "-m", "trainer.launch", "--"]
        + [f"--gin_file={root}/experiments/digits.gin"]
        + [f"--model_dir={tmp_path}/run"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "logs is a symbolic link" in done.stderr
