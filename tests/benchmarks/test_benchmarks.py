"""`python -m benchmarks`: sides take turns, and a table says how they did."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def run(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=550,
    )


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_sides_take_turns(tmp_path):
    done = run(
        *("--parts=speed,strategies", "--models=mlp", "--rounds=2"),
        *("--steps=10", "--examples=1280"),
        "--contenders=trainer,bare:stacked,trainer:odd",
        "--strategies=mirrored,multi_worker_mirrored",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in done.stdout.splitlines()
        if line.startswith("| ")
    ]
    names = [row[0].split(" (")[0] for row in rows]
    assert names[1:3] == [
        "Trainer",
        "bare loop, XLA over 50 batches, gathered at once",
    ]
    assert rows[1][3] == "1.00"
    assert float(rows[2][3]) > 0
    # What the Trainer says of a form that it does not know.
    assert "Left out: Trainer, jit_compile=odd" in done.stdout
    for row in rows[-2:]:
        assert float(row[3]) > 0
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_said_at_once(tmp_path):
    done = run("--contenders=nobody", folder=tmp_path)
    assert "There is no contender 'nobody'. Valid: trainer" in done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_a_step_without_tensorflow_makes_the_same_numbers(tmp_path):
    pytest.importorskip("jax")
    for does in ("lower", "run"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.on_gpu", does),
                *(str(tmp_path), "--models=mlp"),
            ],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    rows = [
        line.split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith("| mlp")
    ]
    assert len(rows) == 2
    for _, _, moved, difference, again, integers, _ in rows:
        assert float(moved) > 0.01
        assert float(difference) < 1e-6
        assert float(again) == 0
        assert integers == "equal"
