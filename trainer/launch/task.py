"""One task of a cluster, across all its restarts."""

import contextlib
import dataclasses
import os
import signal
import uuid
from collections.abc import Callable
from typing import Any

from trainer.errors import EXIT_START_AGAIN
from trainer.launch.policy import End
from trainer.launch.process import Process
from trainer.launch.task_spec import TaskSpec
from trainer.launch.terminal import log
from trainer.runtime import exit_report

# More than the last lines need; the log of a long run may be huge.
_TAIL_BYTES = 1 << 16
# Lets a restarted task recognize the lease that its predecessor has left.
_THIS_LAUNCHER = uuid.uuid4().hex


class Task:
    """A task and the process that currently runs it.

    Attributes:
        spec: what to start, with the variables of the exit report added.
        log_path: the log file, shared by all restarts.
        restarts: how often it was restarted.
        left_out: whether the others go on without it.

    All times are on the agent's clock.
    """

    def __init__(
        self,
        spec: TaskSpec,
        *,
        log_dir: str,
        start_process: Callable[[TaskSpec, str], Process] = Process,
    ) -> None:
        stem = os.path.join(log_dir, f"{spec.job}_{spec.index}")
        self.log_path = f"{stem}.log"
        # Absolute: the process may change its working directory.
        self._report_path = os.path.abspath(f"{stem}.exit.json")
        environ = {
            **spec.environ,
            exit_report.VARIABLE: self._report_path,
            exit_report.LAUNCHER: _THIS_LAUNCHER,
        }
        self.spec = dataclasses.replace(spec, environ=environ)
        self.restarts = -1
        self.left_out = False
        self._start_process = start_process
        self._process: Process | None = None
        self._started = 0.0
        self._stopped_at: float | None = None
        self._has_trained = False
        self._sent: set[int] = set()

    @property
    def name(self) -> str:
        """Such as `"worker 1"`."""
        return self.spec.name

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended, as far as is known."""
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """The newest process's return code, once it has ended."""
        return None if self._process is None else self._process.returncode

    @property
    def is_training(self) -> bool:
        """Whether its process may have something to save."""
        # Asked for many times a second while the others wait for it.
        if not self._has_trained:
            self._has_trained = self._report().get("step") is not None
        return self._has_trained

    def start(self, now: float) -> End | None:
        """Starts a process; returns its end if that fails."""
        self.restarts += 1
        self._started, self._stopped_at = now, None
        self._has_trained = False
        self._sent.clear()
        try:
            # Somebody may have removed it.
            os.makedirs(os.path.dirname(self.log_path) or ".", exist_ok=True)
            self._process = self._start_process(self.spec, self.log_path)
        except OSError as error:
            # Such as too many processes, or no memory: worth another try.
            self._process = None
            return End(self.name, now, 0.0, None, str(error))
        return None

    def poll(self, now: float) -> End | None:
        """Returns the end of the process, once, if it did not end well."""
        if self._process is None or not self.is_running:
            return None
        code = self._process.poll()
        if code is None:
            if not self._process.is_stopped():
                self._stopped_at = None
            elif self._stopped_at is None:
                self._stopped_at = now
            return None
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
        """Returns the output of the process since the last call."""
        return b"" if self._process is None else self._process.new_output()

    def forward(self, number: int) -> None:
        """See `Process.forward`."""
        if self._process is not None:
            self._process.forward(number)

    def signal(self, number: int) -> None:
        """See `Process.signal`."""
        if self._process is not None:
            self._process.signal(number)

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
            log(f"{self.name} {why}: it is killed.")

    def last_lines(self, count: int) -> list[str]:
        """Returns the end of its log file; empty if it cannot be read."""
        try:
            with open(self.log_path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - _TAIL_BYTES, 0))
                # The tail may begin in the middle of a character.
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return text.rstrip().splitlines()[-count:]

    def _report(self) -> dict[str, Any]:
        if self._process is None:
            return {}
        # The number excludes the report of a child process, which inherits the
        # variable.
        return exit_report.read(self._report_path, pid=self._process.pid)
