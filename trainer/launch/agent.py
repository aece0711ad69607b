"""The agent: runs this host's tasks from the first start to the last end."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from trainer.errors import EXIT_DONE, EXIT_START_AGAIN
from trainer.launch.group import Failure, Group
from trainer.launch.policy import End, Limits, signal_name
from trainer.launch.task import Task
from trainer.launch.terminal import echo, log

# Also how far the chief's output on the terminal lags behind.
_POLL_SECONDS = 0.05
# After a failure there is no state left that is worth a long wait.
_AFTER_FAILURE_SECONDS = 10.0
# A process that is blocked in the kernel does not react even to SIGKILL.
_KILL_SECONDS = 10.0
# The longest time between two looks at the clock that counts.
_MOST_SECONDS = 2.0
# Enough for the end of a traceback.
_LAST_LINES = 30
# Ctrl-C, a supervisor or job manager, and a terminal that is closed.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1,)


class Agent:
    """The tasks of a cluster that run here.

    Args:
        tasks: the tasks, the chief first; its output is shown.
        limits: see `Limits`.
        run_is_over: returns whether the run's record says that it has ended
            well since the launcher started. The chief may run on another
            host.
        clock: has `monotonic` and `sleep`, as the module `time`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        limits: Limits,
        run_is_over: Callable[[], bool],
        clock: Any = time,
    ) -> None:
        self._tasks = tasks
        self._limits = limits
        self._run_is_over = run_is_over
        self._clock = clock
        self._last = clock.monotonic()
        self._time = 0.0
        self._over_at: float | None = None
        self._groups = [Group(some, limits) for some in _grouped(tasks)]
        # Signals that this process has received.
        self._ending: list[int] = []
        self._to_forward: list[int] = []

    def run(self) -> int:
        """Starts the tasks, and returns when the last one has ended.

        Returns:
            The exit code: 0, or that of the failure that ended the launch.
            After a signal, it is 75 if a process has saved its state and
            requests a restart, 0 if the run was done by then, else 128 plus
            the signal's number.
        """
        # Before the first process starts, so that no signal can orphan one.
        with self._collected_signals():
            try:
                failure = self._supervise()
                if failure is not None:
                    self._report(failure)
                    self._end_all(signal.SIGTERM, _AFTER_FAILURE_SECONDS)
                    return failure.end.exit_code
                if self._ending:
                    return self._end_on_signal(self._ending[0])
            finally:
                self._end_all(signal.SIGKILL, _KILL_SECONDS)
        return EXIT_DONE

    def _supervise(self) -> Failure | None:
        """Runs until the outcome is certain, or a signal requests the end.

        Returns:
            The failure that ends the launch; `None` if there is none.
        """
        while not self._ending:
            now = self._now()
            ends = self._start_due(now) + self._poll(now)
            for group in self._groups:
                names = [task.name for task in group.tasks]
                failure = self._on_ends(
                    group, [end for end in ends if end.task in names]
                )
                if failure is not None:
                    return failure
                group.end_stuck(now)
            self._end_overdue(now)
            if not any(group.is_active for group in self._groups):
                return None
            self._clock.sleep(_POLL_SECONDS)
        return None

    def _now(self) -> float:
        """Returns the seconds during which this process was running.

        A launcher that is stopped together with its tasks, as by
        `scontrol suspend`, has not waited for them in that time. It reads the
        clock all the time; only two seconds of a longer gap count.
        """
        last, self._last = self._last, self._clock.monotonic()
        self._time += min(self._last - last, _MOST_SECONDS)
        return self._time

    def _start_due(self, now: float) -> list[End]:
        """Starts the groups that are due; returns the ends of those that fail.

        A chief that is restarted needs its workers for the rendezvous, also
        those that have ended well. These find nothing to do and end again.
        """
        first, *others = self._groups
        ends = first.start_if_due(now)
        for group in others:
            # Until the chief is back there is nothing to join.
            if group.is_needed and first.is_leaving:
                if group.tasks[0].returncode == EXIT_DONE:
                    group.due = now
            else:
                ends += group.start_if_due(now)
        return ends

    def _poll(self, now: float) -> list[End]:
        """Forwards output and signals; returns how tasks have just failed."""
        while self._to_forward:
            # A handler may append at any time, so take one after the other.
            number = self._to_forward.pop(0)
            for task in self._tasks:
                task.forward(number)
        ends = [task.poll(now) for task in self._tasks]
        # After the ends: a restart may replace the process in the next round,
        # and output that was not read by then would not be shown.
        if output := self._chief.new_output():
            echo(output)
        if self._over_at is None and self._has_ended_well():
            self._finish(now)
        found = [end for end in ends if end is not None]
        # Of two that have ended in one moment, the killed one is the cause.
        return sorted(found, key=lambda end: (end.returncode or 0) >= 0)

    @property
    def _chief(self) -> Task:
        """The first task that is not left out; its output is shown."""
        return next(task for task in self._tasks if not task.left_out)

    def _has_ended_well(self) -> bool:
        if self._chief.returncode == EXIT_DONE:
            return True
        # An elastic worker ends well only when all present workers do, so
        # enough of them prove that the run is done, even without worker 0.
        done = [t.returncode == EXIT_DONE for t in self._groups[0].tasks]
        least = self._limits.min_workers
        return least is not None and sum(done) >= least

    def _finish(self, now: float) -> None:
        """Marks the run as done, and cancels planned restarts."""
        self._over_at = now
        # An evaluator may still have to evaluate the last checkpoint.
        for group in filter(lambda group: group.is_needed, self._groups):
            group.cancel()

    def _on_ends(self, group: Group, ends: list[End]) -> Failure | None:
        # An evaluator is restarted, and its failure counts, after the end of
        # the run as before it.
        if not group.is_needed:
            return group.on_ends(ends)
        # The chief of this run may be on another host. Its record is read only
        # when a task has ended, since it may be on a slow disk.
        if ends and self._over_at is None and self._run_is_over():
            self._finish(self._now())
        if self._over_at is None:
            return group.on_ends(ends)
        # The work is done and saved, but an error is still reported. A crash
        # is none: TensorFlow's server threads sometimes crash while a process
        # that is done is taken down.
        for end in ends:
            is_error = (end.returncode or 0) > 0 and not end.requests_restart
            if is_error and group is self._groups[0]:
                return Failure(end)
        return None

    def _end_overdue(self, now: float) -> None:
        """Ends the tasks that keep running although the run is done."""
        if self._over_at is None:
            return
        since, limits = now - self._over_at, self._limits
        for task in self._tasks:
            if not task.is_running or task.spec.job == "evaluator":
                continue
            # One that does not train only serves the chief, or was restarted
            # too late to meet it.
            late = limits.serve_seconds
            if task.is_training:
                late = limits.finish_seconds
            if since > late and task.send_once(signal.SIGTERM):
                log(f"{task.name} still runs after the end of the run: ended.")
            if since > late + limits.end_seconds:
                task.send_once(signal.SIGKILL)

    def _end_on_signal(self, number: int) -> int:
        """Ends all tasks because of a signal; returns the exit code."""
        log(
            f"{signal_name(number)}: ending all processes. A second signal "
            "kills them at once."
        )
        # For a task both mean the same.
        ending = signal.SIGTERM if number == signal.SIGHUP else number
        self._end_all(ending, self._limits.end_seconds)
        if EXIT_START_AGAIN in [task.returncode for task in self._tasks]:
            return EXIT_START_AGAIN
        # As a shell reports a program that the signal has ended.
        return EXIT_DONE if self._over_at is not None else 128 + number

    def _end_all(self, number: int, seconds: float) -> None:
        """Sends a signal, and waits until no task runs or time is up.

        Another signal to this process ends the wait.
        """
        for task in self._tasks:
            task.signal(number)
        # The signal that led here is in this list already.
        received = len(self._ending)
        deadline = self._now() + seconds
        while self._now() <= deadline and len(self._ending) == received:
            # The ends are not handled: nothing is restarted any more.
            self._poll(self._now())
            if not any(task.is_running for task in self._tasks):
                return
            self._clock.sleep(_POLL_SECONDS)

    def _report(self, failure: Failure) -> None:
        """Prints how a task failed, and the end of its log file."""
        end = failure.end
        task = next(t for t in self._tasks if t.name == end.task)
        text = f"{end}. {failure.why}".rstrip()
        if task is self._chief:
            # Its output was shown.
            log(f"{text} Its log: {task.log_path}")
            return
        lines = "".join(f"\n  {line}" for line in task.last_lines(_LAST_LINES))
        log(f"{text} The end of {task.log_path}:{lines}")

    @contextlib.contextmanager
    def _collected_signals(self) -> Iterator[None]:
        """Records signals instead of being killed by them.

        Signals that this process was started to ignore, as under nohup, stay
        ignored.
        """

        def note(number: int, frame: FrameType | None) -> None:
            # A handler may run between any two instructions, so it only
            # records the signal; the loop acts on it.
            is_ending = number in _ENDING
            (self._ending if is_ending else self._to_forward).append(number)

        previous = {
            number: signal.signal(number, note)
            for number in (*_ENDING, *_FORWARDED)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _grouped(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Divides the tasks into groups, the first task's group first."""
    # With parameter servers, a worker may be lost and come back while the
    # others go on.
    alone = {"evaluator"}
    if tasks[0].spec.job == "chief":
        alone.add("worker")
    yield [t for t in tasks if t is tasks[0] or t.spec.job not in alone]
    yield from ([t] for t in tasks[1:] if t.spec.job in alone)
