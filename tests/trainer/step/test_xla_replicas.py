"""XLA compiles the gradients of each of several replicas."""

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.helpers import run_worker
from tests.trainer.step.xla_replicas_worker import CASES

# Four models, each compiled three times.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_worker(
        "tests.trainer.step.xla_replicas_worker",
        directory=tmp_path_factory.mktemp("replicas"),
        root=ROOT,
    )


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_the_graph(found, name):
    """Up to rounding; and to the byte wherever a run is cut."""
    graph, whole, cut = (found[f"{name}/{k}"] for k in ("graph", "xla", "cut"))
    np.testing.assert_allclose(whole, graph, rtol=2e-3, atol=2e-4)
    assert whole.tobytes() == cut.tobytes()
    assert whole.tobytes() != graph.tobytes()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("norm", "the layer 'batch_normalization' reduces over replicas"),
        ("own_step", "a train_step of its own may reduce over replicas"),
        ("central_storage", "XLA cannot compile a step of 2 replicas"),
    ],
)
def test_what_reduces_over_replicas_is_refused(found, name, reason):
    assert reason in str(found[f"{name}/refused"])
