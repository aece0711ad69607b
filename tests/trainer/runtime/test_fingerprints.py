"""Hashes that tell whether processes of a run are alike."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import gin
from trainer.runtime import fingerprints
import trainer.experiment
import mine
gin.parse_config(sys.argv[1])
print(fingerprints.configuration(), fingerprints.code())
"""


@pytest.fixture
def hashes(tmp_path):
    def run(config="run.train_steps = 10", source="x = 1", folder="a"):
        home = tmp_path / folder
        home.mkdir(exist_ok=True)
        (home / "mine.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, config],
            cwd=home,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()

    return run


def test_what_differs_by_right_does_not_count(hashes):
    one = hashes("run.train_steps = 10\nrun.task_index = 0")
    other = hashes(
        "run.train_steps = 10\nrun.task_index = 1\n"
        "Trainer.data_dir = '/elsewhere'",
        folder="b",
    )
    assert one == other


def test_configuration_and_code_are_told_apart(hashes):
    configuration, code = hashes()
    assert hashes("run.train_steps = 11") != [configuration, code]
    changed, same = hashes("run.train_steps = 11")
    assert (changed != configuration, same == code) == (True, True)
    same, changed = hashes(source="x = 2")
    assert (same == configuration, changed != code) == (True, True)
