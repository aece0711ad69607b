"""One process of a task, which never outlives its launcher."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from trainer.launch.task_spec import TaskSpec
from trainer.runtime.files import open_to_append

# From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


class Process:
    """A running process of a task.

    Its output goes straight to a file, so that nothing is lost and nothing
    blocks, whatever happens to the launcher. It leads its own session, so a
    terminal's Ctrl-C reaches it only through the launcher.

    Args:
        spec: what to start.
        log_path: the file that its output is appended to.

    Attributes:
        pid: its number.
        returncode: once it has ended, its exit code, or the negative number
            of the signal that ended it.

    Raises:
        OSError: it cannot be started, or the file cannot be opened.
    """

    def __init__(self, spec: TaskSpec, log_path: str) -> None:
        self.returncode: int | None = None
        self._log_path = log_path
        with open_to_append(log_path) as log:
            # The log also holds the output of earlier processes of this task,
            # which was shown already.
            self._seen = log.tell()
            self._popen = subprocess.Popen(
                spec.command,
                # Without this, Python buffers output to a file, and the log
                # lags behind.
                env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.environ},
                # Several tasks would compete for what is typed on the terminal.
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Also makes it a group leader, so that its children can be
                # signalled.
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        self.pid = self._popen.pid

    def poll(self) -> int | None:
        """Returns the return code, or `None` while it is running."""
        # WNOWAIT leaves a zombie, which keeps the number in use.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.returncode is None and os.waitid(os.P_PID, self.pid, options):
            # Kill its children before it is reaped: until then, no other
            # process group can have its number.
            self.signal(signal.SIGKILL)
            self.returncode = self._popen.wait()
        return self.returncode

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it; always `False` outside Linux.

        A process that a debugger has stopped does not count.
        """
        return self._status().get("State", "").split()[:1] == ["T"]

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to those it has started."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def forward(self, number: int) -> None:
        """Sends a signal to the process alone, if it has a handler for it.

        A process that is still importing modules has none yet, and would be
        killed by the signal.
        """
        # A hexadecimal mask, in which the lowest bit is signal 1; unknown
        # outside Linux.
        mask = int(self._status().get("SigCgt", "0"), 16)
        catches = mask >> (number - 1) & 1 or sys.platform != "linux"
        if self.returncode is None and catches:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def new_output(self) -> bytes:
        """Returns the output since the last call, as far as it is readable."""
        # A log file that was removed, or a disk that fails, ends no run.
        with contextlib.suppress(OSError), open(self._log_path, "rb") as log:
            log.seek(self._seen)
            output = log.read()
            self._seen += len(output)
            return output
        return b""

    def _status(self) -> dict[str, str]:
        """Returns what Linux says about the process; empty elsewhere."""
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{self.pid}/status", errors="replace") as status,
        ):
            return dict(line.split(":", 1) for line in status)
        return {}


def _die_with_parent() -> Callable[[], None] | None:
    """Makes Linux kill the child when its launcher is killed."""
    if sys.platform != "linux":
        return None
    # Python has no `prctl`, and `setpriv --pdeathsig` is missing in older
    # util-linux. Between fork and exec another thread's locks may be held
    # forever, so everything that could need one is done here, in the parent.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        # The kernel sends the signal when the thread that forked ends. The
        # launcher starts every process from its main thread.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The launcher may have died before `prctl` took effect.
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return prepare
