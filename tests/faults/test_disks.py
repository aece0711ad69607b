"""Disks that are full, read-only or gone while a run writes to them.

The run is held at a step, and the test does to its disk what is to be done.
"""

import contextlib
import shutil
import signal
import subprocess

import pytest

from tests.faults import reading
from tests.faults.test_unreadable import contents
from tests.sets import ordinary


@pytest.fixture
def disk(runs):
    """A file system of 1 MB that holds the run directory."""
    path = runs.folder / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"needs leave to mount: {mounted.stderr.strip()}")
    runs.model_dir = path / "run"
    yield path
    runs.end()
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk):
    """Leaves not a byte."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def hold(runs, *lines, step=8, saved=6):
    """Starts a run that waits at a step, and then does what is planned.

    Args:
        runs: starts it.
        *lines: what is planned after that step.
        step: where it waits.
        saved: the checkpoint that is whole by then; `None` if there is none.
    """
    runs.plan(f"single step {step} hold", *lines)
    process = runs.train()
    process.wait_for(
        lambda: (
            runs.is_held()
            and saved in [None, *reading.whole_steps(runs.model_dir)]
        ),
        f"step {step}, and the save of step {saved}",
    )
    return process


@contextlib.contextmanager
def in_the_way(runs, name):
    """A directory has the name of a file, and the file another one."""
    path, away = runs.model_dir / name, runs.folder / "away"
    if path.exists():
        path.rename(away)
    path.mkdir()
    yield path
    path.rmdir()
    if away.exists():
        away.rename(path)


def lines(model_dir):
    return [(one["step"], one["split"]) for one in reading.metrics(model_dir)]


def must_be_whole(runs, undisturbed):
    """Nothing is missing in the end, neither lines nor the last step."""
    reading.assert_equal(runs.model_dir, undisturbed())
    reading.assert_tidy(runs.model_dir)


def test_a_full_disk_that_stays_full_and_is_freed_later(
    runs, disk, undisturbed
):
    process = hold(runs)
    fill(disk)
    runs.release()
    process.must_end(2)
    # It got to its end, and says what there is; nothing is torn.
    assert "No space left" in process.log
    process.sentence(str(runs.model_dir), "6")
    assert "Traceback" not in process.log
    assert reading.whole_steps(runs.model_dir) == [6]
    (disk / "ballast").unlink()
    runs.train().must_end(0)
    must_be_whole(runs, undisturbed)


@pytest.mark.long
def test_a_full_disk_that_is_freed_meanwhile(runs, disk, undisturbed):
    """What could not be written is made up for by the same process."""
    process = hold(runs, "single step 20 hold")
    fill(disk)
    runs.release()
    process.wait_for_log("No space left")
    process.wait_for(runs.is_held, "step 20")
    assert reading.whole_steps(runs.model_dir) == [6]
    (disk / "ballast").unlink()
    runs.release()
    process.must_end(0)
    must_be_whole(runs, undisturbed)
    assert reading.record(runs.model_dir)["exit_reason"] == "done"


@pytest.fixture
def read_only(disk):
    """Makes the disk read-only, and writable again.

    The run keeps its lock open, and no disk with an open file can be mounted
    anew: a read-only view of it is put on top.
    """
    tops = []

    def switch(on):
        if on:
            subprocess.run(["mount", "--bind", disk, disk], check=True)
            tops.append(disk)
            options = "remount,bind,ro"
            subprocess.run(["mount", "-o", options, disk], check=True)
        else:
            subprocess.run(["umount", "-l", tops.pop()], check=True)

    yield switch
    while tops:
        switch(False)


@pytest.mark.long
def test_a_disk_that_becomes_read_only(runs, disk, read_only, undisturbed):
    process = hold(runs)
    read_only(True)
    runs.release()
    process.must_end(2)
    assert "Read-only file system" in process.log
    assert "Traceback" not in process.log
    # Nor does a start write to it.
    process = runs.train().must_end(2)
    process.sentence("error", str(runs.model_dir))
    assert "Traceback" not in process.log
    read_only(False)
    assert reading.whole_steps(runs.model_dir) == [6]
    runs.train().must_end(0)
    must_be_whole(runs, undisturbed)


@pytest.mark.long
def test_a_kill_on_a_full_disk(runs, disk, undisturbed):
    process = hold(runs, "single step 20 SIGKILL")
    fill(disk)
    runs.release()
    process.must_end(-signal.SIGKILL)
    assert reading.whole_steps(runs.model_dir) == [6]
    (disk / "ballast").unlink()
    runs.train().must_end(0)
    must_be_whole(runs, undisturbed)


def test_a_directory_that_was_moved_is_not_made_anew(runs, undisturbed):
    process = hold(runs)
    moved = runs.folder / "moved"
    runs.model_dir.rename(moved)
    runs.release()
    process.must_end(2)
    process.sentence("no longer the lock of this run", str(runs.model_dir))
    assert not runs.model_dir.exists()
    # What was there is as it was.
    assert reading.whole_steps(moved) == [6]
    moved.rename(runs.model_dir)
    runs.train().must_end(0)
    must_be_whole(runs, undisturbed)


@pytest.mark.long
def test_a_directory_that_a_file_stands_in_the_way_of(runs, undisturbed):
    process = hold(runs)
    moved = runs.folder / "moved"
    runs.model_dir.rename(moved)
    runs.model_dir.write_text("in the way")
    runs.release()
    process.must_end(2)
    process.sentence("error", str(runs.model_dir))
    assert "Traceback" not in process.log
    runs.model_dir.unlink()
    moved.rename(runs.model_dir)
    runs.train().must_end(0)
    must_be_whole(runs, undisturbed)


WITH_TENSORBOARD = (
    "--gin.run.callbacks=[@Faults(), @JsonLines(), @TensorBoard(), "
    "@Checkpoint()]",
    "--allow_unused_bindings",
)


def test_a_run_whose_logs_are_in_no_file_is_not_done(runs, undisturbed):
    """One warning, one more at the end, and nothing is lost."""
    process = hold(runs)
    with in_the_way(runs, "metrics.jsonl") as path:
        runs.release()
        process.must_end(2)
    process.sentence("error", "wait in the last checkpoint", str(path))
    assert process.log.count("cannot be written") == 2
    assert "Traceback" not in process.log
    assert 24 in reading.whole_steps(runs.model_dir)
    runs.train().must_end(0)
    assert lines(runs.model_dir) == lines(undisturbed())


@pytest.mark.long
def test_an_evaluator_says_what_it_could_not_write(runs):
    runs.train().must_end(0)
    runs.plan("evaluator log 0 hold")
    flags = ("--mode=continuous_eval", "--gin.run.eval_poll_seconds=0.05")
    process = runs.train(*flags, environ={"FAULTS_TASK": "evaluator"})
    process.wait_for(lambda: runs.is_held("evaluator"), "its first log")
    with in_the_way(runs, "metrics_evaluator.jsonl") as path:
        runs.release()
        process.must_end(2)
    process.sentence("error", str(path), "1 logs wait in best.json")
    assert "Traceback" not in process.log
    runs.train(*flags).must_end(0)
    (line,) = reading.metrics(runs.model_dir, path.name)
    assert line["step"] == 24


@pytest.mark.long
def test_what_waits_is_bounded_and_the_loss_is_told(runs):
    runs.flags = (
        "--train_steps=3000",
        "--gin.run.log_every=1",
        "--gin.run.eval_every=3000",
        "--gin.Checkpoint.every=1000",
    )
    process = hold(runs, saved=None)
    with in_the_way(runs, "metrics.jsonl"):
        runs.release()
        process.must_end(2)
    lost = process.sentence("1000 logs wait in the last checkpoint", "are lost")
    runs.train().must_end(0)
    there = len(lines(runs.model_dir))
    assert 1000 < there <= 1000 + 8
    assert f" {1500 + 1 - there} older logs are lost" in lost


@pytest.mark.long
def test_tensorboard_on_a_full_disk_leaves_nothing_behind(runs, disk):
    runs.flags = (
        *WITH_TENSORBOARD,
        "--train_steps=400",
        "--gin.run.log_every=1",
        "--gin.Checkpoint.every=200",
    )
    process = hold(runs, saved=None)
    fill(disk)
    runs.release()
    process.must_end(2)
    assert "Traceback" not in process.log
    assert len(process.log.splitlines()) < 60
    for split in ("train", "eval"):
        assert len(list((runs.model_dir / split).glob("*"))) <= 1


@pytest.mark.long
def test_who_removes_tensorboards_files_loses_no_checkpoint(runs):
    runs.flags = WITH_TENSORBOARD
    process = hold(runs)
    for split in ("train", "eval"):
        shutil.rmtree(runs.model_dir / split)
    runs.release()
    process.must_end(0)
    assert reading.whole_steps(runs.model_dir) == [6, 12, 18, 24]


@pytest.mark.long
def test_a_run_that_cannot_save_may_give_up(runs, disk):
    runs.flags = (
        "--train_steps=2000000",
        "--gin.Checkpoint.every=1000",
        "--gin.Checkpoint.give_up_after='2s'",
        "--gin.run.log_every=1000",
        "--gin.run.eval_every=2000000",
        "--gin.run.steps_per_loop=100",
    )
    process = hold(runs, step=2000, saved=1000)
    fill(disk)
    runs.release()
    process.must_end(2)
    process.sentence("error", "No checkpoint could be saved", "give_up_after")


@pytest.mark.long
def test_lines_that_wait_survive_a_kill(runs, undisturbed):
    """The file is away while three are due; a checkpoint holds them."""
    process = hold(runs, "single step 16 hold")
    with in_the_way(runs, "metrics.jsonl"):
        runs.release()
        process.wait_for(
            lambda: (
                runs.is_held() and 12 in reading.whole_steps(runs.model_dir)
            ),
            "step 16, and the save of step 12",
        )
        process.signal(signal.SIGKILL)
        process.must_end(-signal.SIGKILL)
    runs.train().must_end(0)
    must_be_whole(runs, undisturbed)


@pytest.mark.long
def test_two_workers_on_a_full_disk(runs, disk):
    """It is worker 0 that writes; both end alike."""
    pair = {"worker": 2}
    runs.plan("worker_0 step 8 hold")
    tasks = runs.tasks(**pair)
    tasks["worker_0"].wait_for(
        lambda: (
            runs.is_held("worker_0")
            and 6 in reading.whole_steps(runs.model_dir)
        ),
        "step 8",
    )
    fill(disk)
    runs.release()
    tasks["worker_0"].must_end(2)
    assert "No space left" in tasks["worker_0"].log
    assert tasks["worker_1"].end() != 0
    (disk / "ballast").unlink()
    assert reading.whole_steps(runs.model_dir) == [6]
    for process in runs.tasks(**pair).values():
        process.must_end(0)
    assert reading.newest(runs.model_dir) == 24


@pytest.mark.parametrize("what", ordinary(["moved", "unlocked"], ["moved"]))
def test_a_run_that_has_lost_its_directory_writes_nothing(
    runs, undisturbed, what
):
    first = hold(runs)
    if what == "moved":
        runs.model_dir.rename(runs.folder / "elsewhere")
    else:
        (runs.model_dir / "run.lock").unlink()
    # The line of the plan is done: it holds nobody else.
    runs.train(log="second").must_end(0)
    before = contents(runs.model_dir)
    runs.release()
    first.must_end(2)
    first.sentence("no longer the lock of this run")
    assert contents(runs.model_dir) == before
    assert reading.record(runs.model_dir)["exit_reason"] == "done"
    reading.assert_equal(runs.model_dir, undisturbed())
