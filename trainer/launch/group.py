"""Tasks that are restarted together, because none can go on without another."""

import signal
from collections.abc import Sequence
from typing import NamedTuple

from trainer.errors import EXIT_USER_ERROR
from trainer.launch.policy import End, Limits, Restart, RestartPolicy
from trainer.launch.task import Task
from trainer.launch.terminal import log


class Failure(NamedTuple):
    """Why the launch cannot go on.

    Attributes:
        end: the first failure.
        why: a sentence; empty where the end explains itself.
    """

    end: End
    why: str = ""


class Group:
    """Tasks that fail and are restarted together.

    When one of them has ended, the others get the time to notice it and to
    save; then all are started again.

    Attributes:
        tasks: see above.
        due: when to start them; `None` while no start is planned.
    """

    def __init__(self, tasks: Sequence[Task], limits: Limits) -> None:
        self.tasks = tasks
        self.due: float | None = 0.0
        self._limits = limits
        self._policy = RestartPolicy(limits)
        # Since the group was started.
        self._ends: list[End] = []

    @property
    def is_needed(self) -> bool:
        """Whether the run needs it; an evaluator only reads checkpoints."""
        return self.tasks[0].spec.job != "evaluator"

    @property
    def is_active(self) -> bool:
        """Whether a task runs or will."""
        return self.due is not None or any(t.is_running for t in self.tasks)

    @property
    def is_leaving(self) -> bool:
        """Whether a task has ended since the group was started."""
        return bool(self._ends)

    def cancel(self) -> None:
        """Starts no task any more."""
        self.due = None
        self._ends.clear()

    def start_if_due(self, now: float) -> list[End]:
        """Starts the tasks once they are due and none of them runs any more.

        Returns:
            The ends of those that could not be started.
        """
        running = any(task.is_running for task in self.tasks)
        if self.due is None or self.due > now or running:
            return []
        self.cancel()
        ends = [task.start(now) for task in self.tasks if not task.left_out]
        return [end for end in ends if end is not None]

    def on_ends(self, ends: Sequence[End]) -> Failure | None:
        """Decides on a restart when tasks of this group have just ended.

        Returns:
            The failure that ends the launch; `None` if it goes on.
        """
        for end in ends:
            # A user's mistake, also where another end has led to a restart.
            if end.returncode == EXIT_USER_ERROR:
                return self._decide(end)
        self._ends += ends
        if self.due is not None or not self._ends:
            return None
        # A task that left with 75 may have left because of one that takes
        # longer to end.
        causes = [end for end in self._ends if not end.requests_restart]
        if not causes and any(task.is_running for task in self.tasks):
            return None
        return self._decide((causes or self._ends)[0])

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

    def _decide(self, cause: End) -> Failure | None:
        decision = self._policy.on_end(cause)
        limits = self._limits
        if isinstance(decision, Restart):
            self.due = cause.at + decision.after
            others = " with its peers" if len(self.tasks) > 1 else ""
            when = f" in {decision.after:g} s" if decision.after else ""
            count = "which does not count"
            if decision.number:
                count = f"restart {decision.number} of at most "
                count += f"{limits.max_restarts} in {limits.window_seconds:g} s"
            log(f"{cause}. It is restarted{others}{when} ({count}).")
            return None
        workers = [t for t in self.tasks if t.spec.job == "worker"]
        task = next(t for t in self.tasks if t.name == cause.task)
        left = sum(not t.left_out for t in workers if t is not task)
        # Leaving out a task with a defect would hide it, and the others would
        # soon fail in the same way.
        enough = limits.min_workers is not None and left >= limits.min_workers
        if decision.is_final or task not in workers or not enough:
            return Failure(cause, decision.why)
        task.left_out = True
        self._policy.forget(task.name)
        self.due = cause.at
        log(
            f"{cause}. {decision.why} The others go on without it: "
            f"--min_workers={limits.min_workers}."
        )
        return None
