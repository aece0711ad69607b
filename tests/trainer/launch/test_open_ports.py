"""Which programs can reach the ports of a cluster: real launches."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# A cluster of one worker opens a port, too.
LAUNCH = ["-m", "trainer.launch", "--num_workers=1", "--max_restarts=0"]
RUN = ["--gin_file=experiments/digits.gin", "--train_steps=2"]


def launch(folder, *before):
    command = [*before, sys.executable, *LAUNCH, "--", *RUN]
    return subprocess.run(
        [*command, f"--model_dir={folder / 'run'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def in_a_namespace():
    """The command of docs/scale/ports.md, as far as to the launcher's."""
    text = (ROOT / "docs" / "scale" / "ports.md").read_text()
    command = re.search(r"^ +(unshare .*?)\\\n", text, re.MULTILINE)[1]
    return shlex.split(command)


def test_open_ports_are_named(tmp_path):
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr
    # The worker's; the coordinator's is for this machine alone.
    named = re.search(r"ports open to the network .*?: (\d+) ", done.stdout)
    assert named
    assert 0 < int(named[1]) < 65536
    assert "docs/scale/ports.md" in done.stdout


@pytest.mark.long
def test_tasks_train_in_a_network_namespace(tmp_path):
    try:
        subprocess.run([*in_a_namespace(), "true"], check=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no network namespaces here")
    done = launch(tmp_path, *in_a_namespace())
    assert done.returncode == 0, done.stderr
    # Nobody outside can reach them.
    assert "ports open" not in done.stdout
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"] == "done"
