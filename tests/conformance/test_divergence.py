"""Going back to before a bad step, under every kind of strategy."""

import numpy as np
import pytest

from . import running
from .divergence import STEPS, VARIANTS

EXACT = ("default",)
# The others differ from these by one thing each.
CHOSEN = ("two", "shuffled")
STRATEGIES = (
    "default",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in (
            "mirrored:2",
            "one_device",
            "central_storage:2",
            "multi_worker_mirrored@2",
        )
    ),
)


EACH = pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in CHOSEN))
        for name in VARIANTS
    ],
)


@pytest.fixture(scope="module", params=STRATEGIES)
def found(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("divergence")
    extra = ("--extra", "divergence")
    if not any(
        item.path == request.path and item.get_closest_marker("long")
        for item in request.session.items
    ):
        extra += ("--only", *CHOSEN)
    return request.param, running.run(request.param, str(directory), *extra)


@EACH
def test_weights_are_those_of_data_without_the_batches(found, variant):
    strategy, results = found
    case = results.case(variant)
    guarded = [key for key in case if key.startswith("guarded")]
    assert len(guarded) > 10
    for key in guarded:
        expected = case[key.replace("guarded", "reference")]
        assert np.isfinite(expected).all(), key
        difference = np.max(np.abs(case[key] - expected), initial=0)
        assert difference <= (0 if strategy in EXACT else 1e-6), key


@EACH
def test_the_batches_at_fault_are_written_down(found, variant):
    case = found[1].case(variant)
    assert case["expected"].size
    assert case["skipped"].tolist() == case["expected"].tolist()


@EACH
def test_each_step_is_logged_once_and_the_graph_is_kept(found, variant):
    case = found[1].case(variant)
    assert case["steps"].tolist() == list(range(3, STEPS + 1, 3))
    assert case["traces"] == 1
