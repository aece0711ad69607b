"""`--mode=check`: what it says of a run, and that it leaves no trace."""

import hashlib
import json

import pytest

from tests.trainer.cli.tiny import TINY, run_trainer

SAVES = TINY + "run.callbacks = [@Checkpoint(), @JsonLines(), @Export()]\n"


def digests(folder):
    """What a folder holds: by path, a file's digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        if path.is_file()
        else "a folder"
        for path in folder.rglob("*")
    }


def report(folder):
    return json.loads((folder / "check.json").read_text())


def test_a_new_run(tmp_path):
    done = run_trainer(tmp_path, "--mode=check", "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    assert "would start      yes" in done.stdout
    run = tmp_path / "run"
    assert list(digests(run)) == ["check.json"]
    found = report(run)
    assert found["would_start"] is True
    assert found["run"]["begins_at_step"] == 0
    assert found["run"]["ends_at_step"] == 8
    model = found["model"]
    assert model["parameters"] == model["trainable_parameters"] == 5
    assert model["model_memory"] == 5 * 4
    # SGD has a counter and a learning rate.
    assert model["optimizer_memory"] <= 16
    steps = found["steps"]
    assert steps["steps_made"] >= 2
    assert steps["retraces"] == 0
    assert 0 < steps["loss"] < 10
    assert 0 < found["evaluation"]["loss"] < 10
    assert found["checkpoint"]["restores_what_was_saved"] is True
    assert found["export"]["export_by_Export"] > 0
    left = 8 / steps["steps_a_second"]
    assert steps["all_that_are_left"] == pytest.approx(left)
    assert found["verdict"]["unused_bindings"] == 0


def test_a_run_that_has_begun_stays_as_it_is(tmp_path):
    done = run_trainer(tmp_path, "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    # What a save that was killed leaves behind, and a run removes.
    (run / "checkpoints" / "tmp_0123").mkdir()
    before = digests(run)
    arguments = ("--model_dir=run", "--train_steps=20")
    done = run_trainer(tmp_path, "--mode=check", *arguments, text=SAVES)
    assert done.returncode == 0, done.stderr
    assert report(run)["run"]["begins_at_step"] == 8
    after = digests(run)
    del after["check.json"]
    assert after == before
    # A checkpoint that does not fit is found, and an old report is replaced.
    text = SAVES + "linear.units = 2\n"
    done = run_trainer(tmp_path, "--mode=check", *arguments, text=text)
    assert done.returncode == 2
    found = report(run)
    assert found["would_start"] is False
    assert "The checkpoint is of a different model" in found["error"]
    after = digests(run)
    del after["check.json"]
    assert after == before
