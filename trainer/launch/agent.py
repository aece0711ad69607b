"""The agent: runs this host's tasks from the first start to the last end."""

import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_DONE, EXIT_START_AGAIN
from trainer.launch.clock import Clock
from trainer.launch.group_policy import Failure, GroupPolicy
from trainer.launch.managed_task import ManagedTask
from trainer.launch.policy import End
from trainer.launch.process import Process
from trainer.launch.roles import serves_chief, takes_part
from trainer.launch.stuck import left_behind, may_wait, overdue, stopped
from trainer.launch.timeouts import Timeouts

# Also how far the chief's output on the terminal lags behind.
_POLL_SECONDS = 0.05
# A task that lost a peer often ends before that peer does. The peer's own end
# is the reason to report, so wait a little for it.
_SETTLE_SECONDS = 2.0
# A process that is blocked in the kernel does not react even to SIGKILL.
_KILL_SECONDS = 10.0


class Signals(NamedTuple):
    """Signals that this process has received; signal handlers append here.

    Attributes:
        end: signals that request the launcher to end.
        forward: signals that are meant for the tasks.
    """

    end: list[int]
    forward: list[int]


class Agent:
    """The tasks of a cluster that run here.

    Args:
        tasks: the tasks, the chief first.
        policy: decides what follows from the end of a task.
        timeouts: how long to wait for a task.
        echo: called with the chief's output as it arrives.
        log: called with a sentence about each process that has to be killed.
        run_is_over: returns whether the run's record says that it has ended
            well since the launcher started. The chief may run on another
            host.
        signals: see `Signals`.
        clock: the time, and how to sleep.
    """

    def __init__(
        self,
        tasks: Sequence[ManagedTask],
        policy: GroupPolicy,
        *,
        timeouts: Timeouts,
        echo: Callable[[bytes], None],
        log: Callable[[str], None],
        run_is_over: Callable[[], bool],
        signals: Signals,
        clock: Clock,
    ) -> None:
        self._tasks = tasks
        self._policy = policy
        self._timeouts = timeouts
        self._echo = echo
        self._log = log
        self._signals = signals
        self._clock = clock
        self._run_is_over = run_is_over
        self._over_at: float | None = None
        # A process that is blocked in the kernel may outlive its SIGKILL; it
        # should be reported once.
        self._killed: list[Process] = []

    @property
    def chief(self) -> ManagedTask:
        """The first task that is not left out; its output is shown."""
        remaining = (t for t in self._tasks if not t.left_out)
        return next(remaining, self._tasks[0])

    @property
    def is_over(self) -> bool:
        """Whether the run is done, so that no task is needed any more."""
        return self._over_at is not None

    def run(self) -> Failure | None:
        """Runs until the outcome is certain, or a signal requests the end.

        Some tasks may still be running then.

        Returns:
            The task that failed for good; `None` if there is none.
        """
        for task in self._tasks:
            task.due = self._clock()
        while not self._signals.end:
            for task, end in self._start_due() + self._poll():
                failure = self._handle_end(task, end)
                if failure is not None:
                    return self._settle(failure)
            too_late = self._overdue()
            for task in too_late:
                if not may_wait(
                    task, self._tasks, elastic=self._policy.is_elastic
                ):
                    return Failure(task)
            # No task is left, or those left only wait for peers that have
            # ended: the run counts as done, and `launch` ends them.
            if len(too_late) == sum(map(_is_active, self._tasks)):
                return None
            self._end_stuck()
            self._clock.sleep(_POLL_SECONDS)
        return None

    def end(self, seconds: float, *, number: int = signal.SIGTERM) -> None:
        """Ends the running tasks: a signal, a grace period, then SIGKILL.

        Another signal to this process ends the grace period.

        Args:
            seconds: the grace period.
            number: the signal.
        """
        self._signal(number)
        self._await_ends(seconds)
        self.kill()

    def kill(self) -> None:
        """Kills the running tasks."""
        self._signal(signal.SIGKILL)
        self._await_ends(_KILL_SECONDS)

    def _end_stuck(self) -> None:
        """Kills the tasks that cannot end by themselves."""
        now, timeouts = self._clock(), self._timeouts
        for task in stopped(self._tasks, timeouts, now):
            seconds = f"{timeouts.stopped_seconds:g} s"
            self._kill(task, f"has been stopped (SIGSTOP) for {seconds}")
        before = now - timeouts.left_behind_seconds
        for task in self._left_behind(before):
            seconds = f"{timeouts.left_behind_seconds:g} s"
            self._kill(task, f"is still in a run that ended {seconds} ago")

    def _overdue(self) -> list[ManagedTask]:
        if self._over_at is None:
            return []
        since = self._clock() - self._over_at
        return overdue(self._tasks, self._timeouts, since)

    def _left_behind(self, before: float) -> list[ManagedTask]:
        # An elastic worker may leave while the run goes on.
        if self._policy.is_elastic:
            return []
        return left_behind(self._tasks, self._timeouts, before)

    def _kill(self, task: ManagedTask, why: str) -> None:
        process = task.process
        if process is not None and process not in self._killed:
            self._killed.append(process)
            self._log(f"{task.spec.name} {why}: it is killed.")
            process.signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for task in self._tasks:
            if task.process is not None:
                task.process.signal(number)

    def _await_ends(self, seconds: float) -> None:
        """Waits until no task runs, time is up, or another signal arrives."""
        # The signal that led here is in this list already; only a later one
        # counts.
        received = len(self._signals.end)
        deadline = self._clock() + seconds
        while True:
            # The ends are not handled: nothing is restarted any more.
            self._poll()
            if not any(t.is_running for t in self._tasks):
                return
            if len(self._signals.end) > received or self._clock() > deadline:
                return
            self._clock.sleep(_POLL_SECONDS)

    def _start_due(self) -> list[tuple[ManagedTask, End]]:
        """Starts the tasks that are due; returns those that did not start."""
        now = self._clock()
        due = [t for t in self._tasks if t.due is not None and t.due <= now]
        if self._left_behind(now):
            # A new process would wait in vain for peers that are still in the
            # old run.
            due = [t for t in due if not takes_part(t)]
        restarted = (t for t in due if t.faults or t.process is not None)
        if any(map(takes_part, restarted)):
            # A restarted task needs all its peers for the rendezvous, also
            # those that have ended well. These find nothing to do and end
            # again.
            due += [
                t
                for t in self._tasks
                if takes_part(t) and t.returncode == EXIT_DONE
            ]
        ends = [(t, t.start(now)) for t in due]
        return [(t, end) for t, end in ends if end is not None]

    def _poll(self) -> list[tuple[ManagedTask, End]]:
        """Forwards output and signals; returns the tasks that just failed."""
        self._forward_signals()
        now = self._clock()
        found = [(t, t.take_end(now)) for t in self._tasks]
        # After the ends: a restart may replace the process in the next round,
        # and output that was not read by then would not be shown.
        if self.chief.process is not None:
            output = self.chief.process.new_output()
            if output:
                self._echo(output)
        if not self.is_over and self._has_ended_well():
            self._finish()
        ends = [(t, end) for t, end in found if end is not None]
        # A cause goes before the tasks that lost a peer because of it.
        ends.sort(key=lambda one: one[1].returncode == EXIT_START_AGAIN)
        return ends

    def _forward_signals(self) -> None:
        while self._signals.forward:
            # A handler may append at any time, so take one after the other.
            number = self._signals.forward.pop(0)
            for task in self._tasks:
                if task.process is not None:
                    task.process.forward(number)

    def _has_ended_well(self) -> bool:
        if self.chief.returncode == EXIT_DONE:
            return True
        # An elastic worker ends well only when all present workers do, so
        # enough of them prove that the run is done, even without worker 0.
        least = self._policy.min_workers
        done = [t for t in self._tasks if t.returncode == EXIT_DONE]
        return least is not None and sum(map(takes_part, done)) >= least

    def _finish(self) -> None:
        """Marks the run as done, and cancels planned restarts."""
        self._over_at = self._clock()
        # The restart of an evaluator stays planned: it may still have to
        # evaluate the last checkpoint.
        for task in filter(takes_part, self._tasks):
            task.due = None

    def _handle_end(self, task: ManagedTask, end: End) -> Failure | None:
        # An evaluator is restarted, and its failure counts, after the end of
        # the run as before it.
        if not takes_part(task):
            return self._policy.on_end(task, end)
        # The chief of this run may be on another host. Its record is read only
        # when a task has ended, since it may be on a slow disk.
        if not self.is_over and self._run_is_over():
            self._finish()
        if not self.is_over:
            return self._policy.on_end(task, end)
        # The work is done and saved, but an error is still reported. A crash
        # is none: TensorFlow's server threads sometimes crash while a process
        # that is done is taken down.
        is_error = not end.is_transient and not end.is_crash
        if is_error and not serves_chief(task, self._tasks):
            return Failure(task, end)
        return None

    def _settle(self, failure: Failure) -> Failure:
        """Finds the task to blame, preferably not one that lost a peer (75)."""
        if failure.task.returncode != EXIT_START_AGAIN:
            return failure
        deadline = self._clock() + _SETTLE_SECONDS
        while self._clock() < deadline:
            for task, end in self._poll():
                if end.returncode != EXIT_START_AGAIN:
                    return Failure(task, end)
            if not any(t.is_running for t in self._tasks):
                break
            self._clock.sleep(_POLL_SECONDS)
        return failure


def _is_active(task: ManagedTask) -> bool:
    return task.is_running or task.due is not None
