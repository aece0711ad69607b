"""One process of a cluster: it never outlives its launcher."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from trainer.launch.tasks import Task
from trainer.runtime.local_files import open_to_append

_PR_SET_PDEATHSIG = 1


class Process:
    """A started task.

    Its output goes straight into a file, so that nothing is lost and nothing
    blocks, whatever becomes of the launcher. It leads a session of its own:
    a terminal's Ctrl-C reaches it only through the launcher.

    Args:
        task: what to start.
        log_path: the file that its output is added to.

    Attributes:
        task: as given.
        log_path: as given.
        returncode: once it has ended, its exit code, or the negative number
            of the signal that ended it.
    """

    def __init__(self, task: Task, log_path: str) -> None:
        self.task = task
        self.log_path = log_path
        self.returncode: int | None = None
        with open_to_append(log_path) as log:
            self._seen = log.tell()
            self._popen = subprocess.Popen(
                task.command,
                env={**os.environ, **task.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        self.pid = self._popen.pid

    def poll(self) -> int | None:
        """Its return code, or `None` while it runs."""
        if self.returncode is None and self._has_ended():
            # Before it is reaped, no other process can have its number.
            self._signal_group(signal.SIGKILL)
            self.returncode = self._popen.wait()
        return self.returncode

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, where Linux tells.

        One that a debugger holds is not.
        """
        if self.returncode is not None:
            return False
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                # A program's name may hold anything, brackets too.
                return stat.read().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to what it has started."""
        if self.returncode is None:
            self._signal_group(number)

    def pass_on(self, number: int) -> None:
        """Sends a signal to the process alone, if it has a handler for it.

        One that is still importing its modules has none yet, and would die.

        Args:
            number: the signal.
        """
        if self.returncode is None and _catches(self.pid, number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def new_output(self) -> bytes:
        """What it has written since the last call."""
        with open(self.log_path, "rb") as log:
            log.seek(self._seen)
            output = log.read()
        self._seen += len(output)
        return output

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, where Linux tells."""
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status)
    except OSError:
        return not sys.platform.startswith("linux")
    return bool(int(lines["SigCgt"], 16) >> (number - 1) & 1)


def _die_with_parent() -> Callable[[], None] | None:
    """Makes Linux kill a child whose launcher was killed."""
    if not sys.platform.startswith("linux"):
        return None
    # All that may take a lock happens here: the child only makes two calls.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return prepare
