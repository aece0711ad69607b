"""Runs that an earlier version has left are gone on with."""

import json

import pytest

from tests.frozen import interrupted, running
from tests.frozen.numbers import Frozen

FROZEN = Frozen.read()


def _record(model_dir):
    return json.loads((model_dir / "run.json").read_text())


@pytest.mark.parametrize("name", interrupted.RUNS)
def test_run_is_gone_on_with(name, tmp_path):
    found = interrupted.resume(name, tmp_path)

    assert found.code == 0, found.stderr[-4000:]
    assert running.steps(found.model_dir)[-1] == interrupted.END
    kept = interrupted.FOLDER / name
    # With the speed: these were not written again.
    begin = (kept / "metrics.jsonl").read_text()
    assert (found.model_dir / "metrics.jsonl").read_text().startswith(begin)
    record = _record(found.model_dir)
    assert record["exit_reason"] == "done"
    (before,) = record["previous"]
    assert before["start"] == _record(kept)["start"]
    FROZEN.check(
        f"interrupted/{name}",
        found.model_dir,
        tolerance=interrupted.tolerance(name),
    )


@pytest.mark.parametrize("name", interrupted.RUNS)
def test_kept_run_is_in_the_middle_of_an_epoch(name):
    """And small, and says nothing of the machine that it was made on."""
    kept = interrupted.FOLDER / name
    assert running.steps(kept)[-1] == interrupted.STEP
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    assert _record(kept)["hosts"] == ["host"]
