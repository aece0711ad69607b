"""One task of a group, across all its restarts."""

import contextlib
import dataclasses
import os
import re
import uuid
from collections.abc import Callable

from trainer.errors import EXIT_START_AGAIN
from trainer.launch.policy import End
from trainer.launch.process import Process
from trainer.launch.task_spec import TaskSpec
from trainer.runtime import exit_report

_CHECKPOINT = re.compile(r"step_\d{8,}")
# More than the last lines need; the log of a long run may be huge.
_TAIL_BYTES = 1 << 16
# Lets a restarted task recognize the lease that its predecessor has left.
_THIS_LAUNCHER = uuid.uuid4().hex


class ManagedTask:
    """A task and the process that currently runs it.

    Args:
        spec: what to start.
        log_dir: the directory of its log file; it exists.
        model_dir: the run directory, if it is known and local.
        start_process: starts a process from the spec and the path of its log
            file.

    Attributes:
        spec: see above, with the variables of the exit report added.
        log_path: the log file, shared by all restarts.
        process: the newest process, if one could be started.
        faults: the ends that count against it, oldest first.
        restarts: how often it was restarted.
        due: when to start it; `None` while no start is planned.
        left_out: whether the others go on without it.
        started: when its newest process was started.
        left_at: when one of its processes last left a run with exit code 75,
            if one did; one that never got past the rendezvous does not count.
        stopped_at: since when its process has been stopped (SIGSTOP), or
            `None`.

    All times are on the agent's clock, see `trainer.launch.clock`.
    """

    def __init__(
        self,
        spec: TaskSpec,
        *,
        log_dir: str,
        model_dir: str | None = None,
        start_process: Callable[[TaskSpec, str], Process] = Process,
    ) -> None:
        stem = os.path.join(log_dir, spec.log_name.removesuffix(".log"))
        self.log_path = f"{stem}.log"
        # Absolute: the process may change its working directory.
        self._report_path = os.path.abspath(f"{stem}.exit.json")
        environ = {
            **spec.environ,
            exit_report.VARIABLE: self._report_path,
            exit_report.LAUNCHER: _THIS_LAUNCHER,
        }
        self.spec = dataclasses.replace(spec, environ=environ)
        self._model_dir = model_dir
        self._start_process = start_process
        self.process: Process | None = None
        self.faults: list[End] = []
        self.restarts = 0
        self.due: float | None = None
        self.left_out = False
        self.started = 0.0
        self.left_at: float | None = None
        self.stopped_at: float | None = None
        self._starts = 0

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended, as far as is known."""
        return self.process is not None and self.process.returncode is None

    @property
    def returncode(self) -> int | None:
        """The newest process's return code, once it has ended."""
        return None if self.process is None else self.process.returncode

    def start(self, now: float) -> End | None:
        """Starts a process.

        Args:
            now: the time.

        Returns:
            `None` if it is running now, else its end.
        """
        self.due = None
        self.started = now
        # Not `len(faults)`: ends that are due to another task leave that list.
        self.restarts += self._starts > 0
        self._starts += 1
        try:
            self.process = self._start_process(self.spec, self.log_path)
        except OSError as error:
            # Such as too many processes, or no memory. It is tried again: an
            # end without a return code counts as transient.
            self.process = None
            return End(self.started, 0.0, None, str(error))
        return None

    def take_end(self, now: float) -> End | None:
        """Polls the process, and cleans up after one that has ended.

        Args:
            now: the time.

        Returns:
            Its end, exactly once, if it has just ended and not well.
        """
        if self.process is None or not self.is_running:
            return None
        returncode = self.process.poll()
        self._check_stopped(now)
        if returncode is None:
            return None
        # The number excludes the report of a child process, which inherits the
        # variable.
        report = exit_report.read(self._report_path, pid=self.process.pid)
        # The next process must not inherit this report.
        with contextlib.suppress(OSError):
            os.remove(self._report_path)
        if returncode == 0:
            return None
        ran = now - self.started
        if returncode < 0:
            # A process that a signal has ended leaves no report.
            progress = self._newest_checkpoint()
            return End(now, ran, returncode, progress=progress)
        step = report.get("step")
        if returncode == EXIT_START_AGAIN and step is not None:
            # A report has a step only if the process got past the rendezvous.
            self.left_at = now
        progress = (
            "before the first step" if step is None else f"at step {step}"
        )
        error = report.get("error") or ""
        return End(
            now,
            ran,
            returncode,
            error,
            progress if report else "",
            for_others=report.get("for_others") is True,
        )

    def last_lines(self, count: int) -> str:
        """Returns the end of its log file; empty if it cannot be read."""
        try:
            with open(self.log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(size - _TAIL_BYTES, 0))
                # The tail may begin in the middle of a character.
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-count:])

    def _check_stopped(self, now: float) -> None:
        if self.process is None or not self.process.is_stopped():
            self.stopped_at = None
        elif self.stopped_at is None:
            self.stopped_at = now

    def _newest_checkpoint(self) -> str:
        """Returns the progress of a process that left no exit report."""
        if self._model_dir is None:
            return ""
        try:
            names = os.listdir(os.path.join(self._model_dir, "checkpoints"))
        except OSError:
            # There is no such folder before the first save.
            names = []
        # Numbers are padded to eight digits, and longer ones are larger.
        found = sorted(
            filter(_CHECKPOINT.fullmatch, names), key=lambda n: (len(n), n)
        )
        return f"after {found[-1]}" if found else "before the first checkpoint"
