"""A run that is killed again and again ends as one that never was.

The short version is an ordinary test; the long one prints a table:

    python -m pytest -m long -s tests/chaos
"""

import os

import pytest

from tests.chaos import monkey
from tests.conformance.running import Layout

SEED = int(os.environ.get("CHAOS_SEED", "1"))
# Kills by layout: 56 in all.
LONG = {
    "default": 14,
    "mirrored:2": 14,
    "central_storage:2": 14,
    "multi_worker_mirrored@2": 14,
}


def whole_run(layout, directory):
    """The run that nobody disturbs."""
    run = monkey.Run(Layout.parse(layout), directory / "run")
    codes = run.wait(300)
    assert set(codes) == {0}, run.logs()
    return directory / "run"


def killed_run(layout, tmp_path, kills):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    expected = whole_run(layout, tmp_path / "whole")
    done = monkey.train_with_kills(
        layout, tmp_path / "killed", kills=kills, seed=f"{SEED} {layout}"
    )
    monkey.compare(tmp_path / "killed" / "run", expected)
    return done


def test_three_kills(tmp_path):
    pytest.importorskip("sklearn")
    done = killed_run("default", tmp_path, kills=3)
    assert len(done) == 3


@pytest.mark.long
def test_more_than_fifty_kills(tmp_path):
    pytest.importorskip("sklearn")
    rows, failed = [], []
    for layout, kills in LONG.items():
        folder = tmp_path / layout
        folder.mkdir()
        try:
            rows.append((layout, killed_run(layout, folder, kills), True))
        except AssertionError as error:
            rows.append((layout, [], False))
            failed.append(f"{layout}: {error}")
    print("\n" + monkey.table(rows))
    assert not failed, "\n".join(failed)
