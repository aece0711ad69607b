"""The order of calls that `TPUStrategy` needs, by the command line.

A TPU's devices must be there before TensorFlow runs any operation: the first
one fixes the devices that a process sees.
"""

import json
import os
import subprocess
import sys

import pytest

LOCAL = ["TPUClusterResolver", "initialize_tpu_system", "TPUStrategy"]
REMOTE = [LOCAL[0], "experimental_connect_to_cluster", *LOCAL[1:]]


def run(python, module, *arguments, folder):
    done = subprocess.run(
        [python, "-m", f"tests.plugins.tpu.{module}", *arguments],
        cwd=folder,
        # TensorFlow for TPUs looks for chips, and for Google's servers.
        env=os.environ | {"TPU_LOAD_LIBRARY": "0", "TPU_SKIP_MDS_QUERY": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(x) for x in done.stdout.splitlines() if x[:1] == "{"]


def assert_order(said, expected):
    assert said["code"] == 0
    *calls, (last, _) = said["calls"]
    assert calls == [[name, False] for name in expected]
    assert last == "shutdown_tpu_system"


@pytest.mark.parametrize(
    ("tpu", "expected"),
    [
        pytest.param("local", LOCAL, marks=pytest.mark.long),
        ("my-slice", REMOTE),
    ],
)
def test_no_operation_runs_before_the_strategy(root, tmp_path, tpu, expected):
    (said,) = run(
        sys.executable,
        "order_worker",
        tpu,
        str(tmp_path / "run"),
        folder=root,
    )
    assert_order(said, expected)
