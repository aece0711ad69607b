"""What is known about a process by its number."""

import os
import subprocess
import time

import pytest

from trainer.runtime.processes import age, is_alive


def test_a_process_until_it_is_dead():
    begin = time.monotonic()
    child = subprocess.Popen(["sleep", "60"])
    assert is_alive(child.pid)
    # The clock of processes has ticks of a hundredth of a second.
    assert age(child.pid) <= time.monotonic() - begin + 0.02
    child.kill()
    # Nobody has asked for its exit code.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.wait()
    assert age(child.pid) is None


@pytest.mark.parametrize("pid", [None, True, "1", 0, -1, 2**22 + 1, 2**70])
def test_what_is_not_a_process(pid):
    assert not is_alive(pid)
