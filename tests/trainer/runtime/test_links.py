"""Nothing outside a run directory is removed or written, links or not."""

import itertools
import os
import shutil
import subprocess
import sys
import time

import keras
import pytest

from tests.helpers import linear, make_trainer, read_lines, saved_steps
from tests.sets import ordinary
from trainer import UserError
from trainer.checkpoint import storage
from trainer.launch.task import Task, TaskSpec
from trainer.runtime import exit_report, files
from trainer.sidecar_evaluator import follow
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


def test_a_linked_checkpoint_is_read_and_its_target_stays(tmp_path, outside):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    link = tmp_path / "run" / "checkpoints" / "step_00000004"
    link.symlink_to(outside / "run" / "checkpoints" / "step_00000004")
    trainer = train(tmp_path / "run", 12)
    assert trainer.step == 12
    # It was what the run went on from: no step before it is there.
    assert saved_steps(tmp_path / "run") == [10, 12]
    assert not link.is_symlink()


NAMES = (
    "step_00000002",
    "step_00000004",
    "old_00000004",
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
    directory.mkdir(parents=True)
    (directory / name).symlink_to(outside / target)
    train(tmp_path / "run", 6)
    assert saved_steps(tmp_path / "run")[:2] == [4, 6]
    links = [p.name for p in directory.iterdir() if p.is_symlink()]
    assert links == ["step_00000099"] * (name == "step_00000099")


def test_links_inside_a_checkpoint(tmp_path, outside):
    train(tmp_path / "run", 2)
    path = tmp_path / "run" / "checkpoints" / "step_00000002"
    (path / "more").symlink_to(outside / "deep")
    (path / "file").symlink_to(outside / "deep" / "deeper" / "file")
    train(tmp_path / "run", 8)
    assert saved_steps(tmp_path / "run") == [6, 8]


PLACES = (
    ("checkpoints", Checkpoint),
    ("metrics.jsonl", JsonLines),
    ("tensorboard", TensorBoard),
    ("tensorboard/train", TensorBoard),
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


def test_a_link_of_the_evaluator_is_refused(tmp_path, outside):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(outside / "run" / "checkpoints")
    with pytest.raises(UserError, match="best is a symbolic link"):
        follow(
            make_trainer(linear).new_run(str(tmp_path / "run")), train_steps=2
        )


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


def test_a_path_with_file_in_front_is_as_safe(tmp_path, outside):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(outside / "deep")
    with pytest.raises(UserError, match="is a symbolic link"):
        train(f"file://{tmp_path}/run", 2)


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


@pytest.mark.parametrize("target", ["nowhere", "deep/deeper/file"])
def test_files_that_are_replaced_replace_the_link(tmp_path, outside, target):
    path = tmp_path / "run.json"
    path.symlink_to(outside / target)
    files.write_whole(str(path), "{}")
    assert path.read_text() == "{}"
    assert not path.is_symlink()


def test_what_lies_beside_a_file_is_no_way_out(tmp_path, outside, monkeypatch):
    """The name under which a file is written first can be foreseen."""
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    beside = tmp_path / f"run.json.host-{os.getpid()}.tmp"
    beside.symlink_to(outside / "deep" / "deeper" / "file")
    files.write_whole(str(tmp_path / "run.json"), "{}")
    assert (tmp_path / "run.json").read_text() == "{}"
    assert not beside.is_symlink()


def test_the_exit_report(tmp_path, outside, monkeypatch):
    path = tmp_path / "report.json"
    for name in ("report.json", "report.json.tmp"):
        (tmp_path / name).symlink_to(outside / "deep" / "deeper" / "file")
    monkeypatch.setenv(exit_report.VARIABLE, str(path))
    exit_report.ExitReport().write(2)
    assert exit_report.read(str(path), pid=os.getpid())["exit_code"] == 2


def test_a_log_file(tmp_path, outside):
    path = tmp_path / "worker_0.log"
    path.symlink_to(outside / "deep" / "deeper" / "file")
    task = Task(TaskSpec("worker", 0, ("true",)), log_dir=str(tmp_path))
    with pytest.raises(UserError, match="symbolic links"):
        task.start(0.0)


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


def test_event_files_that_hide_steps(tmp_path, outside):
    """Their names are the seconds at which they will be written."""
    train(tmp_path / "run", 2, TensorBoard())
    directory = tmp_path / "run" / "tensorboard" / "train"
    now = int(time.time())
    for seconds in range(now, now + 60):
        name = f"events.out.tfevents.{seconds}.-restart"
        (directory / name).symlink_to(outside / "deep" / "deeper" / "file")
    train(tmp_path / "run", 4, TensorBoard())
    written = [p for p in directory.glob("*-restart") if not p.is_symlink()]
    assert len(written) == 1


def test_removal_elsewhere_than_on_local_disks():
    """`ram://` is a file system of TensorFlow's own, as gs:// is."""
    directory = "ram://links/checkpoints"
    for step in (1, 2):
        storage.save(directory, storage.Snapshot(step, {"a": 1.0}, {}))
    storage.remove(storage.listing(directory)[0])
    files.append("ram://links/lines", "a\n")
    files.append("ram://links/lines", "b\n")
    files.write_whole("ram://links/whole", "c")
    assert [storage.step_of(p) for p in storage.listing(directory)] == [2]
    assert files.exists("ram://links/lines")
    files.remove("ram://links/checkpoints")
    files.remove("ram://links/lines")
    files.remove("ram://links/nothing")
    assert not files.exists("ram://links/lines")
    assert storage.listing(directory) == []
