"""Tasks of one run that were not given the same, or are not the same code."""

import pytest

from tests.faults.runs import ROOT
from tests.faults.test_two_workers import PAIR

CODE = """
import gin
import keras


@gin.configurable
def net():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense({units})])
"""


def assert_all_say(processes, *words):
    """Each ends with 2 and in a sentence that tells both tasks apart."""
    for process in processes:
        process.must_end(2, seconds=120)
        assert "Traceback" not in process.log
        process.sentence("worker 0", "worker 1", *words)


def test_another_configuration_is_refused(runs):
    first = runs.tasks(start=["worker_0"], **PAIR)
    second = runs.tasks("--batch_size=24", start=["worker_1"], **PAIR)
    assert_all_say([*first.values(), *second.values()])
    assert not (runs.model_dir / "checkpoints").exists()


@pytest.mark.long
def test_other_code_is_refused(runs, tmp_path):
    """The same files and flags, and another module on one of the hosts."""
    (tmp_path / "own.gin").write_text("import own\nTrainer.model = @net\n")
    runs.flags = (f"--gin_file={tmp_path}/own.gin",)
    processes = []
    for number, units in enumerate((3, 4)):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        (folder / "own.py").write_text(CODE.format(units=units))
        started = runs.tasks(
            start=[f"worker_{number}"],
            environ={f"worker_{number}": {"PYTHONPATH": f"{folder}:{ROOT}"}},
            **PAIR,
        )
        processes += started.values()
    assert_all_say(processes)
