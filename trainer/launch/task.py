"""One task of a group, over all its lives."""

import contextlib
import dataclasses
import os
import re
import uuid
from collections.abc import Callable

from trainer.errors import EXIT_START_AGAIN
from trainer.launch.policy import End
from trainer.launch.process import Process
from trainer.launch.tasks import Task
from trainer.runtime import exit_report

_CHECKPOINT = re.compile(r"step_\d{8,}")
_TAIL_BYTES = 1 << 16
# So that a task that is started again knows what the one before has left.
_THIS_LAUNCHER = uuid.uuid4().hex


class Member:
    """A task and the process that runs it now.

    Args:
        task: what to start, again and again.
        log_dir: where its log file is; it exists.
        model_dir: the run directory, if it is known and local.
        start_process: starts the task, given with the path of its log file.

    Attributes:
        task: as given.
        log_path: the log file, of all lives.
        process: the newest process, if one could be started.
        faults: the ends that count against it, oldest first.
        restarts: how often it was started again.
        due: when it is to be started; `None` while nothing is planned.
        left_out: whether the others go on without it.
        started: when its newest process was.
        left_at: when one of its processes left a run with 75 last, if one
            did; one that came no further than to meet its peers has not.
        stopped_at: since when its process is stopped (SIGSTOP), or `None`.

    All times are by the clock of the group, see `trainer.launch.clock`.
    """

    def __init__(
        self,
        task: Task,
        *,
        log_dir: str,
        model_dir: str | None = None,
        start_process: Callable[[Task, str], Process] = Process,
    ) -> None:
        stem = os.path.join(log_dir, task.log_name.removesuffix(".log"))
        self.log_path = f"{stem}.log"
        # Absolute: the process may change its working directory.
        self._report_path = os.path.abspath(f"{stem}.exit.json")
        environ = {
            **task.environ,
            exit_report.VARIABLE: self._report_path,
            exit_report.LAUNCHER: _THIS_LAUNCHER,
        }
        self.task = dataclasses.replace(task, environ=environ)
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
        self._lives = 0

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended, as far as is known."""
        return self.process is not None and self.process.returncode is None

    @property
    def returncode(self) -> int | None:
        """That of the newest process once it has ended."""
        return None if self.process is None else self.process.returncode

    def start(self, now: float) -> End | None:
        """Starts it.

        Args:
            now: the time.

        Returns:
            `None` if it runs now, else its end.
        """
        self.due = None
        self.started = now
        self.restarts += self._lives > 0
        self._lives += 1
        try:
            self.process = self._start_process(self.task, self.log_path)
        except OSError as error:
            self.process = None
            return End(self.started, 0.0, None, str(error))
        return None

    def take_end(self, now: float) -> End | None:
        """Looks after its process; also cleans up behind one that ended.

        Args:
            now: the time.

        Returns:
            Its end, once, if it has just ended and that was no good end.
        """
        if self.process is None or not self.is_running:
            return None
        returncode = self.process.poll()
        self._look_whether_stopped(now)
        if returncode is None:
            return None
        report = exit_report.read(self._report_path, pid=self.process.pid)
        with contextlib.suppress(OSError):
            os.remove(self._report_path)
        if returncode == 0:
            return None
        ran = now - self.started
        if returncode < 0:
            place = self._newest_checkpoint()
            return End(now, ran, returncode, place=place)
        step = report.get("step")
        if returncode == EXIT_START_AGAIN and step is not None:
            self.left_at = now
        place = "before the first step" if step is None else f"at step {step}"
        error = report.get("error") or ""
        return End(
            now,
            ran,
            returncode,
            error,
            place if report else "",
            for_others=report.get("for_others") is True,
        )

    def last_lines(self, count: int) -> str:
        """The end of its log file; empty if it cannot be read."""
        try:
            with open(self.log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(size - _TAIL_BYTES, 0))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-count:])

    def _look_whether_stopped(self, now: float) -> None:
        if self.process is None or not self.process.is_stopped():
            self.stopped_at = None
        elif self.stopped_at is None:
            self.stopped_at = now

    def _newest_checkpoint(self) -> str:
        """How far a process had come that could not say so itself."""
        if self._model_dir is None:
            return ""
        try:
            names = os.listdir(os.path.join(self._model_dir, "checkpoints"))
        except OSError:
            names = []
        # The longer a name, the larger its number.
        found = sorted(
            filter(_CHECKPOINT.fullmatch, names), key=lambda n: (len(n), n)
        )
        return f"after {found[-1]}" if found else "before the first checkpoint"
