"""One process of a task, which never outlives its launcher."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from trainer.launch.task_spec import TaskSpec
from trainer.runtime.local_files import open_to_append

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
        spec: see above.
        log_path: see above.
        returncode: once it has ended, its exit code, or the negative number
            of the signal that ended it.
    """

    def __init__(self, spec: TaskSpec, log_path: str) -> None:
        self.spec = spec
        self.log_path = log_path
        self.returncode: int | None = None
        with open_to_append(log_path) as log:
            # The log also holds the output of earlier processes of this task,
            # which was shown already.
            self._seen = log.tell()
            self._popen = subprocess.Popen(
                spec.command,
                env={**os.environ, **spec.environ},
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
        if self.returncode is None and self._has_ended():
            # Kill its children before it is reaped: until then, no other
            # process group can have its number.
            self._signal_group(signal.SIGKILL)
            self.returncode = self._popen.wait()
        return self.returncode

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it; always `False` outside Linux.

        A process that a debugger has stopped does not count.
        """
        if self.returncode is not None:
            return False
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                # The program's name comes before, and may contain parentheses.
                return stat.read().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to those it has started."""
        if self.returncode is None:
            self._signal_group(number)

    def forward(self, number: int) -> None:
        """Sends a signal to the process alone, if it has a handler for it.

        A process that is still importing modules has none yet, and would be
        killed by the signal.

        Args:
            number: the signal.
        """
        if self.returncode is None and _catches(self.pid, number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def new_output(self) -> bytes:
        """Returns the output since the last call."""
        with open(self.log_path, "rb") as log:
            log.seek(self._seen)
            output = log.read()
        self._seen += len(output)
        return output

    def _has_ended(self) -> bool:
        # WNOWAIT leaves a zombie, which keeps the number in use.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal; `True` where this is unknown."""
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status)
    except OSError:
        # On Linux the process has ended; elsewhere there is no /proc to ask.
        return not sys.platform.startswith("linux")
    # A hexadecimal mask, in which the lowest bit is signal 1.
    return bool(int(lines["SigCgt"], 16) >> (number - 1) & 1)


def _die_with_parent() -> Callable[[], None] | None:
    """Makes Linux kill the child when its launcher is killed."""
    if not sys.platform.startswith("linux"):
        return None
    # Between fork and exec another thread's locks may be held forever, so
    # everything that could need one is done here, in the parent.
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
