"""A run whose number of workers changes goes on with the same mathematics."""

import numpy as np
import pytest

from tests.chaos.monkey import Run, lines
from tests.conformance.running import Layout

FLAGS = (
    "--batch_size=60",
    "--gin.run.steps_per_loop=5",
    "--gin.run.log_every=5",
    "--gin.run.eval_every=20",
)


def train(layout, folder, steps):
    folder.mkdir(exist_ok=True)
    run = Run(
        Layout.parse(layout),
        folder / "run",
        f"--train_steps={steps}",
        *FLAGS,
        gin_file="experiments/digits.gin",
    )
    assert set(run.wait(300)) == {0}, run.logs()
    return lines(folder / "run")


@pytest.mark.long
def test_two_then_one_then_three_workers(tmp_path):
    pytest.importorskip("sklearn")
    expected = train("default", tmp_path / "one", 60)
    for workers, steps in ((2, 20), (1, 40), (3, 60)):
        layout = f"multi_worker_mirrored@{workers}"
        found = train(layout, tmp_path / "elastic", steps)
    assert [(line["step"], line["split"]) for line in found] == [
        (line["step"], line["split"]) for line in expected
    ]
    np.testing.assert_allclose(
        [line["loss"] for line in found],
        [line["loss"] for line in expected],
        atol=1e-5,
        rtol=0,
    )
