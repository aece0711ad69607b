"""Workers that do not wait for each other: everything is counted once."""

import numpy as np
import pytest

from . import models, running

WORKERS = ["parameter_server@2+2", "parameter_server@4+2"]


@pytest.mark.long
@pytest.mark.parametrize("strategy", WORKERS)
def test_steps_examples_and_metrics_are_counted_once(strategy, tmp_path):
    found = running.run(strategy, str(tmp_path), "--extra", "counts")
    case = found.case("counts")
    assert case["steps"] == 400
    assert case["iterations"] == 400
    assert case["examples"] == 400 * models.BATCH
    assert case["metric_count"] == 400 * models.BATCH
    assert case["staleness"] >= 0
    assert case["loss"] < 0.4


def test_a_run_that_goes_back_leaves_bad_batches_behind(tmp_path):
    strategy, extra = WORKERS[0], ("--extra", "divergence_unordered")
    found = running.run(strategy, str(tmp_path), *extra)
    case = found.case("unordered")
    for key, value in case.items():
        if key.startswith("variable"):
            assert np.isfinite(value).all(), key
    assert 1 <= len(case["entries"]) <= 2
    for first, end in case["entries"].tolist():
        assert 0 <= first < end <= 12
        assert end % 4 == 0
    assert set(case["reasons"].tolist()) == {"loss is nan"}
    assert case["steps"].tolist() == [4, 8, 12]


@pytest.mark.long
@pytest.mark.parametrize("strategy", WORKERS)
def test_reaches_the_accuracy_of_one_device(
    strategy, tmp_path, tmp_path_factory
):
    found = running.run(strategy, str(tmp_path), "--extra", "digits")
    alone = running.run(
        "default", str(tmp_path_factory.mktemp("alone")), "--extra", "digits"
    )
    difference = found["digits.accuracy"] - alone["digits.accuracy"]
    assert abs(difference) <= 0.005
