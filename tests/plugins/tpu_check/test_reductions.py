"""The stand-in for TPUStrategy reduces what TPUStrategy does."""

import json

import pytest

from tests.helpers import run_module


@pytest.mark.long
def test_every_case_reduces_the_same_tensors(root):
    worker = "tests.plugins.tpu_check.reductions_worker"
    printed = run_module(worker, 2, root=root)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert len(lines) == 12
    for line in lines:
        assert line["tpu"], line["name"]
        assert line["stand_in"] == line["tpu"], line["name"]
