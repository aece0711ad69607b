"""The graphs that TensorFlow's TPUStrategy makes of a run, without a chip."""

import json

import pytest

from tests.helpers import run_module

CASES = (
    "plain",
    "moving_average",
    "accumulation",
    "guard",
    "guarded_accumulation",
    "bfloat16",
    "dropout",
    "embedding",
    "global_loss",
    "auc",
)
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


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.long), 2],
    ids=["1 core", "2 cores"],
)
def traced(request, root):
    worker = "tests.plugins.strategies.tpu_trace_worker"
    printed = run_module(worker, request.param, root=root, timeout=600)
    lines = [json.loads(line) for line in printed.splitlines()]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_one_program(traced, name):
    average = name == "moving_average"
    assert traced[name]["train"]["programs"] == 1 + average
    assert traced[name]["eval"]["programs"] == 1


@pytest.mark.parametrize("name", CASES)
def test_no_input_is_padded_by_tensorflow(traced, name):
    for step in ("train", "eval"):
        assert traced[name][step]["padding"] == 0


@pytest.mark.parametrize("name", CASES)
def test_the_host_computes_nothing_in_a_step(traced, name):
    for step in ("train", "eval"):
        assert set(traced[name][step]["host"]) <= ON_THE_HOST
    # The count of steps is all that it reads and writes.
    assert traced[name]["train"]["host"].count("ReadVariableOp") == 1


@pytest.mark.parametrize("name", CASES)
def test_the_loop_carries_no_value_per_replica(traced, name):
    assert set(traced[name]["loop_results"]) <= {"TensorSpec", "SymbolicTensor"}
