"""What a power cut may lose: nothing that a checkpoint or "done" vouches for.

A library that is loaded first notes what is flushed to the disk and what is
renamed, in order. A file that has not been flushed may be empty afterwards.

Where it may, a test mounts a disk of its own and shuts it down without a flush.
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

import keras
import pytest

from tests import helpers
from tests.faults import reading

SOURCE = pathlib.Path(__file__).with_name("ordered.c")


@pytest.fixture
def order(tmp_path):
    """Returns what a command has done, as (what, path, path)."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    made = tmp_path / "ordered.so"
    command = ["cc", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    log = tmp_path / "order"

    def read():
        lines = log.read_text().splitlines()
        return [tuple(line.split("\t")) for line in lines]

    read.environ = {"LD_PRELOAD": str(made), "ORDER_LOG": str(log)}
    return read


def test_what_is_vouched_for_is_on_the_disk_before(runs, order):
    callbacks = "@JsonLines(), @CSV(), @TensorBoard(), @Export()"
    runs.train(
        f"--gin.run.callbacks=[{callbacks}, @Checkpoint()]",
        "--allow_unused_bindings",
        # A save in the background may flush what is logged after its step.
        "--gin.Checkpoint.asynchronous=False",
        environ=order.environ,
    ).must_end(0)
    home, events = runs.model_dir, order()

    def flushed(*, after, before):
        return {p for what, p, _ in events[after:before] if what == "fsync"}

    renames = [
        (number, target)
        for number, (what, _, target) in enumerate(events)
        if what == "rename"
    ]
    saves = [n for n, target in renames if "/checkpoints/step_" in target]
    assert len(saves) == 4
    logs = ("metrics.jsonl", "metrics.csv", "/train", "events.out")
    # Each of the saves counts lines that were logged since the one before.
    for after, before in zip([0, *saves], saves, strict=False):
        there = flushed(after=after, before=before)
        for name in logs:
            assert any(f"{home}/" in one and name in one for one in there)
    done = max(n for n, target in renames if target.endswith("/run.json"))
    there = flushed(after=saves[-2], before=done)
    for name in ("metrics.jsonl", "metrics.csv"):
        assert str(home / name) in there
    # The files of an export have their final names only when they are whole.
    for folder in ("saved_model", "saved_model/variables"):
        for path in (home / "export" / folder).iterdir():
            if path.is_file():
                name = path.name
                assert any(".new" in p and name in p for p in there)
    assert any("model.keras" in path for path in there)
    assert str(home / "export") in there


CALLBACKS = "@Faults(), @callbacks.ReduceLROnPlateau(), @JsonLines(), @CSV()"
WITH_EXPORT = (
    f"--gin.run.callbacks=[{CALLBACKS}, @TensorBoard(), @Export(), "
    "@Checkpoint()]",
    "--allow_unused_bindings",
)
# Linux' EXT4_IOC_SHUTDOWN, and EXT4_GOING_FLAGS_NOLOGFLUSH.
SHUTDOWN, WITHOUT_A_FLUSH = 0x8004587D, 2


class Disk:
    """A file system in a file, whose power can be cut."""

    def __init__(self, folder):
        self.image, self.path = folder / "image", folder / "mounted"
        self.path.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(2**26)
        subprocess.run(["mkfs.ext4", "-q", self.image], check=True)

    def mount(self):
        # It flushes nothing by itself while a test lasts.
        options = ["-t", "ext4", "-o", "loop,commit=900"]
        command = ["mount", *options, self.image, self.path]
        return subprocess.run(command, capture_output=True, text=True)

    def cut(self, *processes):
        """All that was not flushed is lost, and who wrote it is dead."""
        # Without this test's own flush, it is lost in any case.
        (self.path / "unflushed").write_text("x" * 100)
        directory = os.open(self.path, os.O_RDONLY)
        flags = struct.pack("I", WITHOUT_A_FLUSH)
        fcntl.ioctl(directory, SHUTDOWN, flags)
        os.close(directory)
        for process in processes:
            process.signal(signal.SIGKILL)
            process.end()
        subprocess.run(["umount", self.path], check=True)
        assert not self.mount().returncode
        unflushed = self.path / "unflushed"
        assert not unflushed.exists() or not unflushed.stat().st_size


@pytest.fixture
def disk(runs):
    if shutil.which("mkfs.ext4") is None or os.geteuid():
        pytest.skip("needs mkfs.ext4, and root")
    made = Disk(runs.folder)
    mounted = made.mount()
    if mounted.returncode:
        pytest.skip(f"needs leave to mount: {mounted.stderr.strip()}")
    runs.model_dir = made.path / "run"
    yield made
    runs.end()
    subprocess.run(["umount", "-l", made.path], check=True)


@pytest.mark.long
@pytest.mark.parametrize("step", [8, 14, 20])
def test_a_run_goes_on_after_a_power_cut(runs, disk, undisturbed, step):
    runs.plan(f"single step {step} hold")
    process = runs.train(*WITH_EXPORT)
    saved = step // 6 * 6
    process.wait_for(
        lambda: runs.is_held() and reading.newest(runs.model_dir) == saved,
        f"step {step}, and the save of step {saved}",
    )
    disk.cut(process)
    # What a checkpoint counts is there, before anything goes on. What was
    # written after it may be zeros.
    assert reading.newest(runs.model_dir) == saved
    text = (runs.model_dir / "metrics.jsonl").read_text()
    logged = [json.loads(x)["step"] for x in text.splitlines() if x[:1] == "{"]
    assert max(logged) >= saved // 4 * 4
    runs.plan()
    runs.train(*WITH_EXPORT).must_end(0)
    expected = undisturbed(*WITH_EXPORT)
    helpers.compare(runs.model_dir, expected)
    assert steps_of_csv(runs.model_dir) == steps_of_csv(expected)


def steps_of_csv(model_dir):
    lines = (model_dir / "metrics.csv").read_text().splitlines()
    return [line.split(",")[:2] for line in lines]


@pytest.mark.long
def test_what_is_done_stays_done_after_a_power_cut(runs, disk, undisturbed):
    runs.train(*WITH_EXPORT).must_end(0)
    disk.cut()
    record = json.loads((runs.model_dir / "run.json").read_text())
    assert record["exit_reason"] == "done"
    expected = undisturbed(*WITH_EXPORT)
    helpers.compare(runs.model_dir, expected)
    exported = runs.model_dir / "export"
    names = {p.relative_to(exported) for p in exported.rglob("*")}
    of_other = expected / "export"
    assert names == {p.relative_to(of_other) for p in of_other.rglob("*")}
    for name in names:
        if (exported / name).is_file():
            size = (of_other / name).stat().st_size
            assert bool((exported / name).stat().st_size) == bool(size)
    for found, wanted in zip(
        keras.models.load_model(exported / "model.keras").get_weights(),
        keras.models.load_model(of_other / "model.keras").get_weights(),
        strict=True,
    ):
        assert found.tobytes() == wanted.tobytes()
