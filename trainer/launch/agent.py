"""Runs this host's tasks from the first start to the last end."""

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from trainer.errors import EXIT_DONE, EXIT_START_AGAIN, EXIT_USER_ERROR
from trainer.launch.policy import (
    End,
    Failure,
    Limits,
    RestartPolicy,
    signal_name,
)
from trainer.launch.task import ENDING, SIGNALS, Task
from trainer.runtime.standard_streams import say

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


class Agent:
    """The tasks of a cluster that run here.

    Args:
        tasks: the tasks, the chief first; its output is shown.
        limits: see `Limits`.
        run_is_over: returns whether the run's record says that it has ended
            well since the launcher started. The chief may run on another
            host.
        newest_step: returns the step of the run's newest checkpoint; `None`
            if that is not known.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        limits: Limits,
        run_is_over: Callable[[], bool],
        newest_step: Callable[[], int | None],
    ) -> None:
        self._tasks = tasks
        self._chief = tasks[0]
        self._limits = limits
        self._run_is_over = run_is_over
        self._newest_step = newest_step
        self._last = time.monotonic()
        self._time = 0.0
        self._over_at: float | None = None
        self._groups = [_Group(some, limits) for some in _grouped(tasks)]
        # One that is ignored on purpose, as under nohup, stays ignored.
        self._signals = {
            number
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def run(self) -> int:
        """Starts the tasks, and returns when the last one has ended.

        Returns:
            The exit code: 0, or that of the failure that ended the launch.
            After a signal, it is 75 if a process has saved its state and
            requests a restart, 0 if the run was done by then, else 128 plus
            the signal's number.
        """
        # Until the end: they stay pending until `_pause` looks for them. Before
        # the first process starts, so that none can orphan one.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            if number := self._supervise():
                return self._end_on_signal(number)
        except Failure as failure:
            self._report(failure)
            self._end_all(signal.SIGTERM, _AFTER_FAILURE_SECONDS)
            return failure.end.exit_code
        finally:
            self._end_all(signal.SIGKILL, _KILL_SECONDS)
        return EXIT_DONE

    def _pause(self) -> int:
        """Waits a moment; returns a signal that ends the launch, or 0."""
        time.sleep(_POLL_SECONDS)
        for number in signal.sigpending() & self._signals:
            signal.sigwait({number})
            if number in ENDING:
                return number
            for task in self._tasks:
                task.forward(number)
        return 0

    def _supervise(self) -> int:
        """Runs until all tasks have ended, or a signal requests the end.

        Returns:
            The signal; 0 for none.

        Raises:
            Failure: a task has failed for good.
        """
        number = 0
        while not number:
            now = self._now()
            self._start_due(now)
            ends = self._poll(now)
            for group in self._groups:
                names = [task.name for task in group.tasks]
                self._on_ends(group, [e for e in ends if e.task in names])
                group.end_stuck(now)
            self._end_overdue(now)
            if not any(group.is_active for group in self._groups):
                break
            number = self._pause()
        return number

    def _now(self) -> float:
        """Returns the seconds during which this process was running.

        A launcher that is stopped together with its tasks, as by
        `scontrol suspend`, has not waited for them in that time. It reads the
        clock all the time; only two seconds of a longer gap count.
        """
        last, self._last = self._last, time.monotonic()
        self._time += min(self._last - last, _MOST_SECONDS)
        return self._time

    def _start_due(self, now: float) -> None:
        first = self._groups[0]
        for group in self._groups:
            group.start_if_due(now)
            # A chief that was restarted needs its workers again, also those
            # that have ended well.
            is_old = group.is_needed and group.started < first.started
            if is_old and not group.is_active and self._over_at is None:
                group.due = now

    def _poll(self, now: float) -> list[End]:
        """Shows the chief's output; returns how tasks have just failed."""
        ends = [end for task in self._tasks if (end := task.poll(now))]
        # After the ends: a restart may replace the process in the next round,
        # and output that was not read by then would not be shown.
        sys.stdout.buffer.write(self._chief.new_output())
        sys.stdout.flush()
        if self._over_at is None and self._chief.returncode == EXIT_DONE:
            self._finish(now)
        # Of two that have ended in one moment, the killed one is the cause.
        return sorted(ends, key=lambda end: end.returncode >= 0)

    def _finish(self, now: float) -> None:
        """Marks the run as done, and cancels planned restarts."""
        self._over_at = now
        # An evaluator may still have to evaluate the last checkpoint.
        for group in filter(lambda group: group.is_needed, self._groups):
            group.cancel()

    def _on_ends(self, group: "_Group", ends: list[End]) -> None:
        # The chief of this run may be on another host. Its files are read only
        # when a task has ended, since they may be on a slow disk.
        if ends and self._over_at is None and self._run_is_over():
            self._finish(self._now())
        saved = self._newest_step() if ends else None
        ends = [dataclasses.replace(end, saved=saved) for end in ends]
        # An evaluator is restarted, and its failure counts, after the end of
        # the run as before it.
        if self._over_at is None or not group.is_needed:
            group.on_ends(ends)
            return
        # The work is done and saved, but an error is still reported. A crash
        # is none: TensorFlow's server threads sometimes crash while a process
        # that is done is taken down.
        for end in ends:
            is_error = end.returncode > 0 and not end.requests_restart
            if is_error and group is self._groups[0]:
                raise Failure(end)

    def _end_overdue(self, now: float) -> None:
        """Ends the tasks that keep running although the run is done."""
        if self._over_at is None:
            return
        overdue = now - self._over_at - self._limits.finish_seconds
        for task in self._tasks:
            if overdue < 0 or not task.is_running or not task.is_needed:
                continue
            if task.send_once(signal.SIGTERM):
                say(
                    f"{task.name} is still running after the end of the run: "
                    "stopping it."
                )
            if overdue > self._limits.end_seconds:
                task.send_once(signal.SIGKILL)

    def _end_on_signal(self, number: int) -> int:
        """Ends all tasks because of a signal; returns the exit code."""
        say(
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
        deadline = self._now() + seconds
        while self._now() <= deadline:
            # The ends are not handled: nothing is restarted any more.
            self._poll(self._now())
            if not any(task.is_running for task in self._tasks):
                return
            if self._pause():
                return

    def _report(self, failure: Failure) -> None:
        """Prints how a task failed, and the end of its log file."""
        task = next(t for t in self._tasks if t.name == failure.end.task)
        if task is self._chief:
            # Its output was shown.
            say(f"{failure} Its log: {task.log_path}")
            return
        lines = "".join(f"\n  {line}" for line in task.last_lines(_LAST_LINES))
        say(f"{failure} The end of {task.log_path}:{lines}")


class _Group:
    """Tasks that are restarted together: none can continue without another.

    When one of them has ended, the others get the time to notice it and to
    save; then all are started again.

    Attributes:
        tasks: see above.
        due: when to start them; `None` while no start is planned.
        started: when they were started last.
    """

    def __init__(self, tasks: Sequence[Task], limits: Limits) -> None:
        self.tasks = tasks
        self.due: float | None = 0.0
        self.started = 0.0
        self._limits = limits
        self._policy = RestartPolicy(limits)
        # Since the group was started.
        self._ends: list[End] = []

    @property
    def is_needed(self) -> bool:
        """Whether the run needs it; an evaluator only reads checkpoints."""
        return self.tasks[0].is_needed

    @property
    def is_active(self) -> bool:
        """Whether a task runs or will."""
        return self.due is not None or any(t.is_running for t in self.tasks)

    def cancel(self) -> None:
        """Plans no restart any more."""
        self.due = None
        self._ends.clear()

    def start_if_due(self, now: float) -> None:
        """Starts the tasks once they are due and none of them runs any more."""
        running = any(task.is_running for task in self.tasks)
        if self.due is None or self.due > now or running:
            return
        self.cancel()
        self.started = now
        for task in self.tasks:
            if not task.left_out:
                task.start(now)

    def on_ends(self, ends: Sequence[End]) -> None:
        """Decides on a restart when tasks of this group have just ended.

        Raises:
            Failure: there is none.
        """
        for end in ends:
            # A user's mistake, also where another end has led to a restart.
            if end.returncode == EXIT_USER_ERROR:
                raise Failure(end)
        self._ends += ends
        if self.due is not None or not self._ends:
            return
        # A task that left with 75 may have left because of one that takes
        # longer to end.
        causes = [end for end in self._ends if not end.requests_restart]
        if causes or not any(task.is_running for task in self.tasks):
            self._restart_after((causes or self._ends)[0])

    def end_stuck(self, now: float) -> None:
        """Ends the tasks that do not end by themselves."""
        limits = self._limits
        for task in filter(lambda task: task.is_running, self.tasks):
            seconds = limits.stopped_seconds
            if task.stopped_seconds(now) > seconds:
                task.kill(f"has been stopped (SIGSTOP) for {seconds:g} s")
            if not self._ends:
                continue
            since = now - self._ends[0].at
            # A task that trains learns from the others that one is lost, and
            # saves what there is to save. One that does not train yet only
            # waits for its peers, unless it is the cause, and about to end.
            if task.is_training:
                seconds = limits.leave_seconds
            else:
                seconds = limits.settle_seconds + limits.end_seconds
                if self.due is not None or since > limits.settle_seconds:
                    task.send_once(signal.SIGTERM)
            if since > seconds:
                task.kill(f"is still in a run that ended {seconds:g} s ago")

    def _restart_after(self, cause: End) -> None:
        try:
            after, number = self._policy.on_end(cause)
        except Failure as failure:
            self._leave_out(failure)
            return
        self.due = cause.at + after
        others = " with its peers" if len(self.tasks) > 1 else ""
        when = f" in {after:g} s" if after else ""
        count = "which does not count"
        if number:
            most = self._limits.max_restarts
            count = f"restart {number} of at most {most} an hour"
        say(f"{cause}. Restarting it{others}{when} ({count}).")

    def _leave_out(self, failure: Failure) -> None:
        """Goes on without a task that cannot stay, where others are enough.

        Raises:
            Failure: they are not, or would fail in the same way.
        """
        task = next(t for t in self.tasks if t.name == failure.end.task)
        least = self._limits.min_workers
        left = sum(not t.left_out for t in self.tasks if t is not task)
        # The first task coordinates the others.
        is_first = task is self.tasks[0]
        if failure.is_final or is_first or least is None or left < least:
            raise failure
        task.left_out = True
        self._policy.forget(task.name)
        self.due = failure.end.at
        say(f"{failure} The others continue without it: --min_workers={least}.")


def _grouped(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Divides the tasks into groups, the first task's group first."""
    # With parameter servers, a worker may be lost and come back while the
    # others continue.
    alone = {"evaluator"}
    if tasks[0].job == "chief":
        alone.add("worker")
    yield [t for t in tasks if t is tasks[0] or t.job not in alone]
    yield from ([t] for t in tasks[1:] if t.job in alone)
