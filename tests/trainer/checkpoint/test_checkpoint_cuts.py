"""A save that is killed after any of its file operations harms nothing."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.sets import is_long
from tests.trainer.checkpoint.cut_saves import SCENARIOS, snapshot
from trainer.plugin_api import storage

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    path = tmp_path_factory.mktemp("library") / "cut_after.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", path, HERE / "cut_after.c"]
        + ["-ldl"],
        check=True,
    )
    return str(path)


@pytest.fixture(scope="module")
def cuts(request, root, library, tmp_path_factory):
    """Runs the scenarios; the folder of each, and how often it was cut."""
    folder = tmp_path_factory.mktemp("cuts")
    scenarios = [
        scenario
        for scenario in SCENARIOS
        if scenario != "save_and_prune" or is_long(request)
    ]
    for scenario in scenarios:
        start = folder / scenario / "start"
        for step in (10, 20):
            storage.save(str(start), snapshot(step, float(step)))
    leave_leftovers(folder / "start_again" / "start")
    # One process: what is preloaded cannot come from the fork server.
    done = subprocess.run(
        [sys.executable, HERE / "cut_saves.py", library, folder, *scenarios],
        env=os.environ | {"LD_PRELOAD": library, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = [line.split() for line in done.stdout.splitlines()]
    return {scenario: (folder / scenario, int(n)) for scenario, n in said}


def leave_leftovers(start):
    """Of all kinds, as attempts before have left them."""
    shutil.copytree(start / "step_00000020", start / "step_00000020.old")
    shutil.copytree(start / "step_00000010", start / "step_00000015.old")
    (start / "step_00000015.old" / "state.json").unlink()
    shutil.copytree(start / "step_00000010", start / "tmp_a")
    (start / "tmp_b").mkdir()


@pytest.fixture
def cut(cuts):
    """Returns the folders that a scenario's cuts have left."""

    def find(scenario):
        folder, count = cuts[scenario]
        # As many as there are operations: the run that was not cut says so.
        log = (folder / "0.log").read_text().splitlines()
        assert count == len(log) > 15
        print(f"{scenario}: {count} cuts")
        return [folder / str(number) for number in range(1, count + 1)]

    return find


def newest(directory):
    """The newest usable checkpoint, as (step, value); it is whole."""
    found = storage.load_newest(str(directory))
    assert found is not None, sorted(os.listdir(directory))
    for array in found.arrays.values():
        assert (array == found.host["value"]).all()
    return found.step, found.host["value"]


def assert_goes_on(directory):
    """The next attempt finds no leftovers and saves as ever."""
    storage.remove_leftovers(str(directory))
    storage.save(str(directory), snapshot(40, 4.0))
    assert newest(directory) == (40, 4.0)
    names = os.listdir(directory)
    assert all(name.startswith("step_") for name in names), names
    for name in names:
        assert storage.find_fault(str(directory / name)) is None


@pytest.mark.long
def test_a_save_and_the_deletion_of_an_older_one(cut, caplog):
    folders = cut("save_and_prune")
    found = [newest(folder) for folder in folders]
    assert not caplog.records  # Nothing that counts is ever torn.
    first_new = found.index((30, 3.0))
    assert found == [(20, 20.0)] * first_new + [(30, 3.0)] * (
        len(found) - first_new
    )
    for folder in folders:
        assert_goes_on(folder)


def test_a_save_of_a_step_that_is_there(cut, caplog):
    """There is no moment without this step: it is the old or the new."""
    folders = cut("save_again")
    found = [newest(folder) for folder in folders]
    assert not caplog.records
    first_new = found.index((20, 3.0))
    assert found == [(20, 20.0)] * first_new + [(20, 3.0)] * (
        len(found) - first_new
    )
    for folder in folders[::2]:
        assert_goes_on(folder)


def test_the_first_save_of_a_run(cut):
    for folder in cut("first_save"):
        found = storage.load_newest(str(folder / "new"))
        assert found is None or found.host["value"] == 3.0
        assert_goes_on(folder / "new")


def test_a_start_after_a_cut_that_is_cut_again(cut):
    """Leftovers of all kinds, while they are tidied up."""
    for folder in cut("start_again"):
        assert newest(folder) in ((20, 20.0), (30, 3.0))
        assert_goes_on_without(folder, "step_00000015")


def assert_goes_on_without(folder, damaged):
    """As `assert_goes_on`; what was damaged before stays so."""
    for name in (damaged, f"{damaged}.old"):
        shutil.rmtree(folder / name, ignore_errors=True)
    assert_goes_on(folder)


def test_what_a_name_stands_for_is_on_disk_before_the_name(cut):
    """A power cut differs from a kill: only what was flushed is there."""
    folder = cut("first_save")[0].parent
    log = [
        line.split(" ", 1)
        for line in (folder / "0.log").read_text().splitlines()
    ]
    directory = str(folder / "0" / "new")
    final = f"{directory}/step_00000020"
    renamed = log.index(["rename", final])
    temporary = next(path for _, path in log if "/tmp_" in path)
    temporary = temporary[: len(directory) + 1 + len("tmp_") + 32]
    for name in (*os.listdir(final), ""):
        path = f"{temporary}/{name}".rstrip("/")
        written = max(
            i
            for i, (what, where) in enumerate(log)
            if where == path and what in ("write", "close", "mkdir", "rename")
        )
        assert ["fsync", path] in log[written:renamed], name
    assert ["fsync", directory] in log[renamed:]
    # The directory of checkpoints is new as well.
    made = log.index(["mkdir", directory])
    assert ["fsync", str(folder / "0")] in log[made:renamed]
