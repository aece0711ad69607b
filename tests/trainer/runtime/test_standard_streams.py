"""Streams that are closed from the beginning, and those that fail later."""

import subprocess
import sys

import pytest

CODE = """
import os, sys
from trainer.runtime import standard_streams
standard_streams.protect()
file = open("file", "w")
print("for the standard output")
sys.stderr.write("for the standard error")
sys.stdout.flush()
# As C++ code does, which knows of no Python object.
os.write(2, b"for the standard error")
file.write(f"{file.fileno() > 2} {sys.stdin is None or repr(sys.stdin.read())}")
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path, closed):
    (tmp_path / "code.py").write_text(CODE)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} code.py {closed}"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    stdin = "True" if "<&-" in closed else "''"
    assert (tmp_path / "file").read_text() == f"True {stdin}"


def test_what_cannot_be_written_is_lost_and_nothing_else(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} code.py > /dev/full"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "No space left on device" in done.stderr
    assert (tmp_path / "file").read_text() == "True ''"
