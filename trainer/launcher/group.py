"""The processes of a cluster, from the first start to the last end."""

import os
import signal
import time
from collections.abc import Callable, Sequence

from trainer.errors import EXIT_START_AGAIN
from trainer.launcher.process import Process
from trainer.launcher.tasks import Task

_POLL_SECONDS = 0.05
# When one lost its peer, the peer's own end is the reason to be told.
_SETTLE_SECONDS = 2.0
# A process that hangs in the kernel does not even heed SIGKILL.
_KILL_SECONDS = 10.0
# How long a task may save its state after SIGTERM, before SIGKILL.
END_SECONDS = 30.0
# How long the others may go on after the chief has ended with 0. A server
# only waits for its chief's word, an evaluator looks at the last checkpoint.
LEAVE_SECONDS = {"server": 10.0, "worker": 60.0, "evaluator": 300.0}


class Group:
    """The processes of one attempt to run a cluster.

    Args:
        tasks: the chief first.
        log_dir: where each gets its log file; it exists.
        show: is handed what the chief writes, as it comes.
        signals: the signals that ask this process to end; the caller's
            handler adds to it.
        leave_seconds: see `LEAVE_SECONDS`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        log_dir: str,
        show: Callable[[bytes], None],
        signals: Sequence[int] = (),
        leave_seconds: dict[str, float] | None = None,
    ) -> None:
        self._tasks = tasks
        self._log_dir = log_dir
        self._show = show
        self._signals = signals
        self._leave_seconds = leave_seconds or LEAVE_SECONDS
        self._processes: list[Process] = []
        self._chief_ended: float | None = None

    def start(self) -> None:
        """Starts all processes."""
        for task in self._tasks:
            path = os.path.join(self._log_dir, task.log_name)
            self._processes.append(Process(task, path))

    def wait(self) -> Process | None:
        """Returns when the outcome is certain, or a signal came.

        Some may still run then.

        Returns:
            The process that failed first; `None` when all is well. One that
            goes on too long after the chief's good end has failed too: its
            `returncode` is `None`.
        """
        while not self._signals:
            still_running = self._poll()
            failed = [p for p in self._processes if self._has_failed(p)]
            if failed:
                return self._settle(failed)
            if not still_running:
                return None
            late = [p for p in self._processes if self._is_late(p)]
            for process in late:
                if not self._is_server(process):
                    return process
            if len(late) == sum(p.returncode is None for p in self._processes):
                return None
            time.sleep(_POLL_SECONDS)
        return None

    def end(self, seconds: float, *, number: int = signal.SIGTERM) -> None:
        """Ends what still runs: a signal, a while, then SIGKILL.

        Another signal to this process ends the waiting.

        Args:
            seconds: how long that while is at most.
            number: the signal.
        """
        for process in self._processes:
            process.signal(number)
        heard = len(self._signals)
        deadline = time.monotonic() + seconds
        while self._poll() and len(self._signals) == heard:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends what still runs, at once."""
        for process in self._processes:
            process.signal(signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while self._poll() and time.monotonic() < deadline:
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
        running = None in [process.poll() for process in self._processes]
        if self._processes:
            chief = self._processes[0]
            output = chief.new_output()
            if output:
                self._show(output)
            if self._chief_ended is None and chief.returncode == 0:
                self._chief_ended = time.monotonic()
        return running

    def _is_server(self, process: Process) -> bool:
        """Whether it only serves a chief, and has no say in the outcome."""
        job = process.task.job
        return job == "ps" or (
            job == "worker" and self._tasks[0].job == "chief"
        )

    def _has_failed(self, process: Process) -> bool:
        if self._chief_ended is not None and self._is_server(process):
            return False
        return bool(process.returncode)

    def _is_late(self, process: Process) -> bool:
        if self._chief_ended is None or process.returncode is not None:
            return False
        kind = "server" if self._is_server(process) else process.task.job
        since = time.monotonic() - self._chief_ended
        return since > self._leave_seconds[kind]

    def _settle(self, failed: list[Process]) -> Process:
        """The one to blame: who lost a peer (75) is not, if another failed."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            for process in self._processes:
                if (process.returncode or 0) not in (0, EXIT_START_AGAIN):
                    return process
            if time.monotonic() >= deadline or not any(
                p.returncode is None for p in self._processes
            ):
                return failed[0]
            time.sleep(_POLL_SECONDS)
            self._poll()


def exit_code(returncode: int | None) -> int:
    """What a shell calls the end of a process.

    Args:
        returncode: see `Process.returncode`; `None` for one that had to be
            ended because it went on too long.
    """
    if returncode is None:
        return 1
    return returncode if returncode >= 0 else 128 - returncode
