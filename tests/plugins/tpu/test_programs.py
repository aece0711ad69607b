"""The programs of a step: TPUStrategy's own, and that which is compiled."""

import importlib.util
import json

import numpy as np
import pytest

from tests.helpers import run_module
from tests.plugins.tpu.workers import REPLICAS
from tests.sets import long

# The operations a host may run in a step: feeding it and timing that, counting
# it, and passing handles.
ON_THE_HOST = {
    "AssignAddVariableOp",
    "Cast",
    "Const",
    "Identity",
    "IteratorGetNext",
    "Max",
    "NoOp",
    "Pack",
    "Placeholder",
    "ReadVariableOp",
    "Sub",
    "TPUCompilationResult",
    "TPUReplicatedInput",
    "TPUReplicatedOutput",
    "Timestamp",
}


def work(root, *arguments):
    return run_module("tests.plugins.tpu.workers", *arguments, root=root)


# Those of the ordinary set, each with something of its own.
CASES = ("moving_average", "accumulation", "dropout", "embedding")
CASES += ("own_batch_norm", "global_loss")


@pytest.mark.parametrize(
    ("cores", "names"), [(2, CASES), long(2, ()), long(1, ())]
)
def test_a_step_is_one_program_without_work_on_the_host(root, cores, names):
    lines = work(root, "traces", cores, *names).splitlines()
    cases = [json.loads(line) for line in lines]
    assert len(cases) == (len(names) or 11)
    for case in cases:
        name, train, evaluation = case["name"], case["train"], case["eval"]
        assert train["programs"] == 1 + (name == "moving_average"), name
        assert evaluation["programs"] == 1, name
        for one in (train, evaluation):
            assert one["padding"] == 0, name
            assert set(one["host"]) <= ON_THE_HOST, name
        # The count of steps is all that it reads and writes.
        assert train["host"].count("ReadVariableOp") == 1, name
        # The loop carries no value per replica.
        assert set(case["loop_results"]) <= {"TensorSpec", "SymbolicTensor"}
        # The strategy that the compiler gets instead reduces the same.
        sums = case["reduced"]
        assert sums["stand_in"] == sums["tpu"], name
        assert sums["tpu"] or cores == 1, name


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs [tpu-check]"
)
@pytest.mark.parametrize(
    "model", ["conv_net", pytest.param("normalized", marks=pytest.mark.long)]
)
def test_a_step_of_all_replicas_is_one_step(model, tmp_path, root):
    work(root, "step", model, tmp_path)
    work(root, "replicas", REPLICAS, tmp_path)
    with (
        np.load(tmp_path / "results.npz") as found,
        np.load(tmp_path / "expected.npz") as expected,
        np.load(tmp_path / "arguments.npz") as before,
    ):
        assert set(expected.files) <= set(found.files)
        assert len(expected.files) >= 6
        for name in expected.files:
            assert (found[name] != before[f"arr_{name}"]).any()
            for one in found[name]:
                np.testing.assert_allclose(
                    one, expected[name], rtol=0, atol=1e-5
                )
