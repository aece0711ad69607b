"""The processes of a cluster, from the first start to the last end."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from trainer.errors import EXIT_START_AGAIN
from trainer.launcher.process import Process
from trainer.launcher.tasks import Task

_POLL_SECONDS = 0.05
# When one lost its peer, the peer's own end is the reason to be told.
_SETTLE_SECONDS = 2.0
# How long a task may save its state after SIGTERM, before SIGKILL.
END_SECONDS = 30.0
# How long each job may go on after those that decide have ended with 0.
LEAVE_SECONDS = {"worker": 60.0, "ps": 10.0, "evaluator": 300.0}


class Group:
    """The processes of one attempt to run a cluster.

    Args:
        tasks: the chief first.
        log_dir: where each gets its log file; it exists.
        show: is handed what the chief writes, as it comes.
        leave_seconds: see `LEAVE_SECONDS`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        log_dir: str,
        show: Callable[[bytes], None],
        leave_seconds: dict[str, float] | None = None,
    ) -> None:
        self._tasks = tasks
        self._log_dir = log_dir
        self._show = show
        self._leave_seconds = leave_seconds or LEAVE_SECONDS
        self._processes: list[Process] = []

    def start(self) -> None:
        """Starts all processes."""
        for task in self._tasks:
            path = os.path.join(self._log_dir, task.log_name)
            self._processes.append(Process(task, path))

    def wait(self) -> Process | None:
        """Returns when the outcome is certain; some may still run.

        Returns:
            The process that failed first; `None` when all is well. One that
            goes on too long after the chief's good end has failed too: its
            `returncode` is `None`.
        """
        chief_ended: float | None = None
        while True:
            self._poll()
            failed = [p for p in self._processes if p.returncode]
            if failed:
                return self._settle(failed)
            now = time.monotonic()
            running = [p for p in self._processes if p.returncode is None]
            if not running:
                return None
            if chief_ended is None and self._processes[0].returncode == 0:
                chief_ended = now
            if chief_ended is not None:
                late = self._late(running, now - chief_ended)
                if late or all(p.task.job == "ps" for p in running):
                    return self._let_leave(late, chief_ended)
            time.sleep(_POLL_SECONDS)

    def end(self, seconds: float, *, number: int = signal.SIGTERM) -> None:
        """Ends what still runs: a signal, a while, then SIGKILL.

        Args:
            seconds: how long that while is at most.
            number: the signal.
        """
        for process in self._processes:
            process.signal(number)
        deadline = time.monotonic() + seconds
        while self._poll() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends what still runs, at once."""
        for process in self._processes:
            process.signal(signal.SIGKILL)
        while self._poll():
            time.sleep(_POLL_SECONDS)

    def exit_codes(self) -> list[int]:
        """The exit code of each process that has ended, in order."""
        return [
            exit_code(p.returncode)
            for p in self._processes
            if p.returncode is not None
        ]

    def _poll(self) -> bool:
        """Whether any still runs; also passes on what the chief wrote."""
        if self._processes:
            output = self._processes[0].new_output()
            if output:
                self._show(output)
        return any([p.poll() is None for p in self._processes])

    def _settle(self, failed: list[Process]) -> Process:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            for process in self._processes:
                if process.returncode and process not in failed:
                    failed.append(process)
            for process in failed:
                if process.returncode != EXIT_START_AGAIN:
                    return process
            if not self._poll() or time.monotonic() >= deadline:
                return failed[0]
            time.sleep(_POLL_SECONDS)
