"""A checkpoint that was damaged is passed over for the one before."""

import json

import numpy as np
import pytest

from tests.damages import (
    DAMAGES,
    MANIFESTS,
    STATES,
    lead_elsewhere,
    leave_other_files,
)
from tests.helpers import linear, make_trainer, manifest_entry, saved_steps
from trainer import StartAgain, UserError
from trainer.plugin_api import storage
from trainer_plugins import Checkpoint

FILES = (
    "manifest.json",
    "state.json",
    "arrays.index",
    "arrays.data-00000-of-00001",
)


@pytest.fixture
def saved(tmp_path):
    directory = tmp_path / "checkpoints"
    for step in (10, 20):
        arrays = {
            "model/0000": np.full((300, 2), step, "float32"),
            "step/0000": np.array(step),
        }
        host = {"note": f"step {step}", "variables": {}}
        storage.save(str(directory), storage.Snapshot(step, arrays, host))
    return directory


def assert_passed_over(directory, caplog, *names):
    """Step 20 does not count, step 10 does; a warning names the file."""
    caplog.clear()
    found = storage.load_newest(str(directory))
    assert found is not None
    assert found.step == 10
    assert found.host["note"] == "step 10"
    assert (found.arrays["model/0000"] == 10.0).all()
    warning, then = [r.getMessage() for r in caplog.records]
    for name in ("step_00000020", *names):
        assert name in warning
    assert "Continuing from step 10" in then
    with pytest.raises(UserError, match="not a usable checkpoint"):
        storage.load(str(directory / "step_00000020"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file(saved, caplog, name, damage):
    DAMAGES[damage](saved / "step_00000020" / name)
    assert_passed_over(saved, caplog, name)


@pytest.mark.parametrize("content", MANIFESTS)
def test_a_manifest_of_the_wrong_kind(saved, caplog, content):
    (saved / "step_00000020" / "manifest.json").write_text(content)
    assert_passed_over(saved, caplog, "manifest.json")


@pytest.mark.parametrize("name", FILES[1:])
def test_a_manifest_that_leaves_out_a_file(saved, caplog, name):
    path = saved / "step_00000020" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[name]
    path.write_text(json.dumps(manifest))
    assert_passed_over(saved, caplog, "manifest.json")


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "a/../../secret", "", ".", "\x00"]
)
def test_a_manifest_leads_to_no_other_file(saved, caplog, name):
    """Even if what it says of that file is right."""
    (saved / "secret").write_text("x")
    path = saved / "step_00000020" / "manifest.json"
    lead_elsewhere(path, name, manifest_entry(saved / "secret"))
    assert_passed_over(saved, caplog, "manifest.json")


@pytest.mark.parametrize("state", STATES)
def test_a_state_of_the_wrong_kind_under_a_right_checksum(saved, caplog, state):
    folder = saved / "step_00000020"
    (folder / "state.json").write_text(state)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["state.json"] = manifest_entry(folder / "state.json")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert_passed_over(saved, caplog, "state.json")


def test_other_files_do_no_harm(saved, caplog):
    leave_other_files(saved, saved / "step_00000020")
    found = storage.load_newest(str(saved))
    assert found.step == 20
    assert len(caplog.records) == 3  # Of the steps 30 and 40, and of 20.


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_one_that_cannot_be_read_now_is_not_passed_over(tmp_path, name):
    """Else an outage of the disk would throw away what the run has done."""

    def train(steps):
        make_trainer(linear).train(
            steps,
            model_dir=str(tmp_path),
            callbacks=[Checkpoint(every=2)],
        )

    train(4)
    path = tmp_path / "checkpoints" / "step_00000004" / name
    path.unlink()
    # Reading it from its beginning is an input/output error.
    path.symlink_to("/proc/self/mem")
    with pytest.raises(StartAgain, match="cannot be read"):
        train(6)
    assert saved_steps(tmp_path) == [2, 4]
