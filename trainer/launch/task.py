"""One task of a cluster, across all its restarts; it outlives no launcher."""

import collections
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.errors import EXIT_START_AGAIN, UserError
from trainer.launch.policy import End
from trainer.runtime.files import open_to_append
from trainer.runtime.process_exit import LAUNCHER, REPORT, read_report
from trainer.runtime.standard_streams import say

# Ctrl-C, a supervisor or job manager, and a terminal that is closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The launcher blocks them, and takes them when it looks for them.
SIGNALS = {*ENDING, signal.SIGUSR1}
# From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
# Lets a restarted task recognize the lease that its predecessor has left.
_THIS_LAUNCHER = uuid.uuid4().hex


class Task:
    """A task and the process that currently runs it.

    Its output goes straight to a file, so that nothing is lost and nothing
    blocks, whatever happens to the launcher. It leads its own session, so a
    terminal's Ctrl-C reaches it only through the launcher.

    Args:
        job: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`; `"task"` where
            only the task itself knows.
        index: its number within the job.
        command: the program and its arguments.
        environ: variables to set in addition to the launcher's environment.
        log_dir: where its log file goes.

    Attributes:
        job: see above.
        environ: see above.
        name: such as `"worker 1"`.
        log_path: the log file, shared by all restarts.
        left_out: whether the others continue without it.
        returncode: of the newest process, once it has ended: its exit code,
            or the negative number of the signal.

    All times are on the agent's clock.
    """

    def __init__(
        self,
        job: str,
        index: int,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        log_dir: str,
    ) -> None:
        self.job = job
        self.environ = environ
        self.name = f"{job} {index}"
        self._command = command
        stem = os.path.join(log_dir, f"{job}_{index}")
        self.log_path = f"{stem}.log"
        # Absolute: the process may change its working directory.
        self._report_path = os.path.abspath(f"{stem}.exit.json")
        self.left_out = False
        self.returncode: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._seen = 0
        self._started = 0.0
        self._stopped_at: float | None = None
        self._has_trained = False
        self._sent: set[int] = set()

    @property
    def is_needed(self) -> bool:
        """Whether the run needs it; an evaluator only reads checkpoints."""
        return self.job != "evaluator"

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended, as far as is known."""
        return self._popen is not None and self.returncode is None

    @property
    def is_training(self) -> bool:
        """Whether its process may have something to save."""
        # Asked for many times a second while the others wait for it.
        if not self._has_trained:
            self._has_trained = self._report().get("step") is not None
        return self._has_trained

    def start(self, now: float) -> None:
        """Starts a process.

        Raises:
            UserError: it cannot be started, or the log file not be opened.
        """
        self._started, self._stopped_at = now, None
        self._has_trained = False
        self._sent.clear()
        try:
            # Somebody may have removed it.
            os.makedirs(os.path.dirname(self.log_path) or ".", exist_ok=True)
            with open_to_append(self.log_path) as file:
                # The log also holds the output of earlier processes of this
                # task, which was shown already.
                self._seen = file.tell()
                self._popen = self._open(file)
        except OSError as error:
            raise UserError(
                f"{self.name} cannot be started: {error}. Its log goes to "
                "--log_dir."
            ) from None
        self.returncode = None

    def poll(self, now: float) -> End | None:
        """Returns the end of the process, once, if it did not end well."""
        if self._popen is None or not self.is_running:
            return None
        # WNOWAIT leaves a zombie, which keeps the number in use.
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self._popen.pid, options)
        if found is None:
            self._stopped_at = None
            return None
        if found.si_code == os.CLD_STOPPED:
            if self._stopped_at is None:
                self._stopped_at = now
            return None
        # Kill its children before it is reaped: until then, no other process
        # group can have its number.
        self.signal(signal.SIGKILL)
        code = self.returncode = self._popen.wait()
        report = self._report()
        # The next process must not inherit this report.
        with contextlib.suppress(OSError):
            os.remove(self._report_path)
        if code == 0:
            return None
        # One that had no handler yet left in order, too.
        if code == -signal.SIGTERM and signal.SIGTERM in self._sent:
            code = EXIT_START_AGAIN
        error, ran = report.get("error") or "", now - self._started
        return End(self.name, now, ran, code, error, report.get("step"))

    def stopped_seconds(self, now: float) -> float:
        """Returns for how long the process has been stopped (SIGSTOP)."""
        return 0.0 if self._stopped_at is None else now - self._stopped_at

    def new_output(self) -> bytes:
        """Returns the output since the last call, as far as it is readable."""
        # A log file that was removed, or a disk that fails, ends no run.
        with contextlib.suppress(OSError), open(self.log_path, "rb") as file:
            file.seek(self._seen)
            output = file.read()
            self._seen += len(output)
            return output
        return b""

    def last_lines(self, count: int) -> list[str]:
        """Returns the end of its log file; empty if it cannot be read."""
        try:
            with open(self.log_path, errors="replace") as file:
                lines = collections.deque(file, maxlen=count)
        except OSError:
            return []
        return [line.rstrip() for line in lines]

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to those it has started."""
        if self._popen is not None and self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)

    def forward(self, number: int) -> None:
        """Sends a signal to the process alone, if it trains.

        Before that it may have no handler yet, and be killed by the signal.
        """
        if self._popen is not None and self.is_running and self.is_training:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._popen.pid, number)

    def send_once(self, number: int) -> bool:
        """Sends a signal unless this process had it; returns whether it did."""
        is_new = number not in self._sent
        if is_new:
            self._sent.add(number)
            self.signal(number)
        return is_new

    def kill(self, why: str) -> None:
        """Kills the process; `why` is a clause such as `"hangs"`."""
        # One that is blocked in the kernel may outlive this for a while.
        if self.send_once(signal.SIGKILL):
            say(f"{self.name} {why}: killing it.")

    def _open(self, output: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command,
            env={
                **os.environ,
                # Without this, Python buffers output to a file, and the log
                # lags behind.
                "PYTHONUNBUFFERED": "1",
                **self.environ,
                REPORT: self._report_path,
                LAUNCHER: _THIS_LAUNCHER,
            },
            # Several tasks would compete for what is typed on the terminal.
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Also makes it a group leader, so that its children can be
            # signalled.
            start_new_session=True,
            preexec_fn=_before_exec(),
        )

    def _report(self) -> dict[str, Any]:
        if self._popen is None:
            return {}
        # The number excludes the report of a child process, which inherits the
        # variable.
        return read_report(self._report_path, pid=self._popen.pid)


def _before_exec() -> Callable[[], None]:
    """Prepares a child: it takes signals, and dies with its launcher."""
    # Python has no `prctl`, and `setpriv --pdeathsig` is missing in older
    # util-linux. Between fork and exec another thread's locks may be held
    # forever, so everything that could need one is done here, in the parent.
    is_linux = sys.platform == "linux"
    prctl = ctypes.CDLL(None, use_errno=True).prctl if is_linux else None
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if prctl is None:
            return
        # The kernel sends the signal when the thread that forked ends. The
        # launcher starts every process from its main thread.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The launcher may have died before `prctl` took effect.
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return prepare
