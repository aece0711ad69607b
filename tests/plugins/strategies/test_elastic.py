"""A run continues exactly when its number of workers changes."""

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.faults.runs import Runs
from tests.helpers import lines

FLAGS = (
    f"--gin_file={ROOT}/experiments/digits.gin",
    "--batch_size=60",
    "--gin.run.steps_per_loop=5",
    "--gin.run.log_every=5",
    "--gin.run.eval_every=20",
)


@pytest.fixture
def train(tmp_path):
    made = {}

    def run(folder, steps, **counts):
        if folder not in made:
            (tmp_path / folder).mkdir()
            made[folder] = Runs(tmp_path / folder, gin_file=None)
        flags = (*FLAGS, f"--train_steps={steps}")
        if counts:
            started = made[folder].tasks(*flags, **counts).values()
        else:
            started = [made[folder].train(*flags, "--strategy=default")]
        for process in started:
            process.must_end(0)
        return lines(made[folder].model_dir)

    yield run
    for one in made.values():
        one.end()


@pytest.mark.long
def test_two_then_one_then_three_workers(train):
    pytest.importorskip("sklearn")
    expected = train("one", 60)
    for workers, steps in ((2, 20), (1, 40), (3, 60)):
        found = train("elastic", steps, worker=workers)
    assert [(line["step"], line["split"]) for line in found] == [
        (line["step"], line["split"]) for line in expected
    ]
    np.testing.assert_allclose(
        [line["loss"] for line in found],
        [line["loss"] for line in expected],
        atol=1e-5,
        rtol=0,
    )
