"""Which programs can reach the ports of a cluster: real launches."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
# A cluster of one worker opens a port, too.
LAUNCH = ["-m", "trainer.launch", "--num_workers=1", "--max_restarts=0"]
RUN = ["--gin_file=experiments/digits.gin", "--train_steps=2"]


def launch(folder, *flags):
    command = [sys.executable, *LAUNCH, *flags, "--", *RUN]
    return subprocess.run(
        [*command, f"--model_dir={folder / 'run'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def isolated_in_a_child(code, *, prefix=()):
    """Runs code after `isolate()`, in another process."""
    text = "from trainer.launch.isolation import isolate; isolate()\n" + code
    return subprocess.run(
        [*prefix, sys.executable, "-c", text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def namespaces_are_given():
    return isolated_in_a_child("").returncode == 0


needs_namespaces = pytest.mark.skipif(
    not namespaces_are_given(), reason="no network namespaces here"
)


def test_open_ports_are_named(tmp_path):
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr
    # The coordinator's and the worker's.
    named = re.search(
        r"ports open to the network .*?: (\d+), (\d+)\.", done.stdout
    )
    assert named
    assert all(0 < int(port) < 65536 for port in named.groups())
    assert "--isolate" in done.stdout


@needs_namespaces
def test_isolated_tasks_train_and_name_what_is_missing(tmp_path):
    done = launch(tmp_path, "--isolate")
    assert done.returncode == 0, done.stderr
    assert "gs://" in done.stdout
    assert "metadata server" in done.stdout
    assert "ports open" not in done.stdout
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"] == "done"


@needs_namespaces
def test_ports_cannot_be_reached_from_outside():
    """Tasks inside can reach each other, but nothing outside."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        child = subprocess.Popen(
            [sys.executable, "-c", INSIDE, str(outside.getsockname()[1])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        port = int(child.stdout.readline())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        said, _ = child.communicate("end\n", timeout=30)
    assert said.split() == ["refused", "reached", str(os.getuid()), "lo"]


INSIDE = """
import os, socket, sys
from trainer.launch.isolation import isolate
isolate()
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.readline()
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
except OSError:
    print("refused")
socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=5)
print("reached", os.getuid())
with open("/proc/net/dev") as file:
    print(*(line.split(":")[0] for line in file if ":" in line))
"""
