"""Checkpoints that were damaged are passed over, with a sentence."""

import json
import shutil

import pytest

from tests.damages import (
    DAMAGES,
    MANIFESTS,
    STATES,
    lead_elsewhere,
    leave_other_files,
)
from tests.faults import reading
from tests.faults.runs import Runs

FILES = ("manifest.json", "state.json", "arrays.index", "arrays.data")


def file_of(checkpoint, name):
    (path,) = [p for p in checkpoint.iterdir() if p.name.startswith(name)]
    return path


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of 18 of its 24 steps, with a checkpoint every 6."""
    made = Runs(tmp_path_factory.mktemp("first"))
    made.plan("single step 18 SIGTERM")
    made.train().must_end(75)
    # It has saved where it left, at the end of that host loop.
    yield made.model_dir
    made.end()


@pytest.fixture
def copied(runs, first):
    """A copy of it, with four checkpoints."""
    shutil.copytree(first, runs.model_dir, symlinks=True)
    found = reading.checkpoints(runs.model_dir)
    assert list(found) == [6, 12, 18, 20]
    return found


@pytest.fixture
def damaged(copied):
    """A copy whose newest checkpoint is at a multiple of the period."""
    shutil.rmtree(copied.pop(20))
    return copied


def goes_on(runs, undisturbed, *passed_over):
    """It names what it passes over, and ends as if nothing had been."""
    process = runs.train().must_end(0)
    for path in passed_over:
        assert str(path) in process.log, process.log
    assert "Traceback" not in process.log
    reading.assert_equal(runs.model_dir, undisturbed())
    return process


def test_damaged_ones_are_passed_over_for_the_one_before(
    runs, copied, undisturbed
):
    """Three at once, each in its way, and leftovers of a save that was cut."""
    DAMAGES["removed"](file_of(copied[20], "manifest.json"))
    # Nothing but the manifest can tell this one.
    DAMAGES["another's"](file_of(copied[18], "state.json"))
    DAMAGES["bit flipped at 50%"](file_of(copied[12], "arrays.data"))
    leftover = runs.model_dir / "checkpoints" / "tmp_0123"
    shutil.copytree(copied[6], leftover)
    (leftover / "manifest.json").unlink()
    process = goes_on(runs, undisturbed, copied[20], copied[18], copied[12])
    for name in ("manifest.json", "state.json", "arrays.data"):
        assert name in process.log
    assert not leftover.exists()
    # Step 20 is no multiple of the period; the others were written again.
    assert {12, 18, 24} <= set(reading.whole_steps(runs.model_dir))


@pytest.mark.long
def test_all_are_damaged(runs, damaged, undisturbed):
    """There is nothing to go on from, and nothing is overwritten."""
    for path in damaged.values():
        DAMAGES["zeroed"](file_of(path, "arrays.index"))
    process = runs.train().must_end(2)
    process.sentence("None of the checkpoints", str(damaged[18]), "3")
    assert list(reading.checkpoints(runs.model_dir)) == list(damaged)
    for path in damaged.values():
        shutil.rmtree(path)
    goes_on(runs, undisturbed)
    reading.assert_tidy(runs.model_dir)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_each_file_in_each_way(runs, damaged, first, name):
    """Asked of `--mode=eval`, which reads the newest usable one."""
    for kind, damage in DAMAGES.items():
        folder = runs.model_dir / "checkpoints"
        shutil.rmtree(folder)
        shutil.copytree(first / "checkpoints", folder)
        shutil.rmtree(folder / "step_00000020")
        damage(file_of(damaged[18], name))
        process = runs.train("--mode=eval").must_end(0)
        what = f"{kind}: {process.log}"
        assert str(damaged[18]) in process.log, what
        assert file_name(name) in process.log, what
        assert "12" in process.log, what
        assert "Traceback" not in process.log, what


def file_name(name):
    return name if name.endswith("json") else name.partition(".")[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("manifest.json", content) for content in MANIFESTS),
        *(("state.json", state) for state in STATES),
    ],
    ids=lambda text: text[:12],
)
def test_json_of_the_wrong_kind(runs, damaged, undisturbed, name, content):
    (damaged[18] / name).write_text(content)
    if name == "state.json":
        reading.reseal(damaged[18])
        assert reading.is_whole(damaged[18])
    goes_on(runs, undisturbed, damaged[18])


@pytest.mark.long
def test_a_manifest_leads_to_no_other_file(runs, damaged, undisturbed):
    """Even if what it says of that file is right."""
    (runs.model_dir / "checkpoints" / "secret").write_text("x")
    path = damaged[18] / "manifest.json"
    entry = dict(json.loads(path.read_text())["state.json"])
    lead_elsewhere(path, "../secret", entry)
    reading.reseal(damaged[18])
    process = runs.train().must_end(0)
    assert str(damaged[18]) in process.log


@pytest.mark.long
def test_other_files_do_no_harm(runs, damaged, undisturbed):
    leave_other_files(runs.model_dir / "checkpoints", damaged[18])
    process = runs.train().must_end(0)
    assert "Traceback" not in process.log
    assert reading.metrics(runs.model_dir) == reading.metrics(undisturbed())


@pytest.mark.long
def test_a_save_that_was_cut_before_the_last_rename(runs, damaged, undisturbed):
    """A step was being saved again: the old one counts."""
    damaged[18].rename(damaged[18].with_name("step_00000018.old"))
    process = runs.train().must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed())
    assert process.log
    reading.assert_tidy(runs.model_dir)
