"""How processes end, in processes of their own."""

import signal
import subprocess
import sys

import pytest

# What the C library calls when it takes a process down stands for a thread
# that crashes then.
CODE = """
import atexit, ctypes, sys, threading, time
from trainer.runtime.process_exit import end_process, skip_teardown

libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.abort, None, None)
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
if "skip" in sys.argv:
    skip_teardown()
end_process(3, at_once="at_once" in sys.argv)
"""


@pytest.mark.usefixtures("plain_starts")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], -signal.SIGABRT, ["thread", "handler"]),
        (["skip"], 3, ["thread", "handler"]),
        (["at_once"], 3, []),
    ],
)
def test_nothing_is_taken_down_that_is_in_use(root, arguments, code, said):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == said
