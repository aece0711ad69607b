"""A checkpoint of each strategy is restored under each other one."""

import numpy as np
import pytest

from . import running

STRATEGIES = [
    "default",
    "one_device",
    "mirrored:2",
    "central_storage:2",
    "multi_worker_mirrored@2",
    "parameter_server@1+2",
]


# Each of these restores all of the above; the long set has the others.
ALWAYS = ["default", "multi_worker_mirrored@2"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Directories with a checkpoint of each strategy, and what is in it."""
    found = {}
    for strategy in STRATEGIES:
        directory = str(tmp_path_factory.mktemp("source"))
        results = running.run(strategy, directory, "--only", "saved")
        found[directory] = results.case("saved")
    return found


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.long)
        for name in STRATEGIES
    ],
)
def test_restores_the_checkpoints_of_all(strategy, sources, tmp_path):
    found = running.run(strategy, str(tmp_path), "--restore", *sources)
    for i, saved in enumerate(sources.values()):
        restored = found.case(f"restored{i}")
        assert len(saved) > 20
        for key, value in saved.items():
            if key == "eval":
                assert abs(value - restored[key]) <= 1e-5
            else:
                assert np.array_equal(value, restored[key]), (i, key)
