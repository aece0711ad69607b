"""The stand-in for TPUStrategy reduces what TPUStrategy does."""

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_every_case_reduces_the_same_tensors(root):
    done = subprocess.run(
        [
            *(sys.executable, "-m"),
            *("tests.plugins.tpu_check.reductions_worker", "2"),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 12
    for line in lines:
        assert line["tpu"], line["name"]
        assert line["stand_in"] == line["tpu"], line["name"]
