"""The restart policy of a group: what the end of one task means for all."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_START_AGAIN
from trainer.launch import messages
from trainer.launch.managed_task import ManagedTask
from trainer.launch.policy import (
    End,
    Limits,
    Restart,
    decide,
    is_consequence,
    is_symptom,
    recent,
)
from trainer.launch.roles import takes_part


class Failure(NamedTuple):
    """Why a group cannot go on.

    Attributes:
        task: the task that failed for good.
        end: how it ended; `None` if it kept running for too long after the
            chief had ended well.
        why: a sentence; empty where the end explains itself.
    """

    task: ManagedTask
    end: End | None = None
    why: str = ""


class GroupPolicy:
    """Decides whether to restart a task, leave it out, or end the group.

    Args:
        tasks: the tasks of the group.
        limits: how often each may be restarted.
        min_workers: how many workers are enough to go on without another
            one; `None` if all are needed.
        log: called with a sentence for each decision.
    """

    def __init__(
        self,
        tasks: Sequence[ManagedTask],
        *,
        limits: Limits,
        min_workers: int | None,
        log: Callable[[str], None],
    ) -> None:
        self._tasks = tasks
        self._limits = limits
        self._min_workers = min_workers
        self._log = log

    @property
    def min_workers(self) -> int | None:
        """As given."""
        return self._min_workers

    @property
    def is_elastic(self) -> bool:
        """Whether a run may go on without some of its tasks."""
        return self._min_workers is not None

    def on_end(self, task: ManagedTask, end: End) -> Failure | None:
        """Plans the restart of a task that has ended.

        Args:
            task: the task.
            end: how it ended.

        Returns:
            The failure that ends the group; `None` if it goes on.
        """
        # With --max_restarts=0 the first end is the last, whatever caused it.
        if self._limits.max_restarts and self._is_caused_by_others(task, end):
            self._restart(task, end, after=0.0, number=0)
            return None
        task.faults.append(end)
        self._discount_symptoms(task, end)
        decision = decide(task.faults, self._limits)
        if isinstance(decision, Restart):
            number = len(recent(task.faults, self._limits))
            self._restart(task, end, after=decision.after, number=number)
            return None
        # Leaving out a task with a defect would hide it, and the others would
        # soon fail in the same way.
        if decision.defect or not self._is_dispensable(task):
            return Failure(task, end, decision.why)
        task.left_out = True
        self._log(
            f"{task.spec.name} {messages.describe_end(end)}. {decision.why} "
            f"The others go on without it: --min_workers={self._min_workers}."
        )
        return None

    def _is_caused_by_others(self, task: ManagedTask, end: End) -> bool:
        """Whether an end should not count against the task."""
        others = [t for t in self._tasks if t is not task]
        if end.returncode == EXIT_START_AGAIN and (
            end.for_others
            # A stopped task is already lost to its peers, though its own end
            # is still to come.
            or any(t.stopped_at is not None for t in filter(takes_part, others))
        ):
            return True
        return is_consequence(end, [f for t in others for f in t.faults])

    def _discount_symptoms(self, task: ManagedTask, fault: End) -> None:
        for other in self._tasks:
            # That task left first, so its end was counted before the cause was
            # known.
            kept = [end for end in other.faults if not is_symptom(end, fault)]
            if other is not task and len(kept) < len(other.faults):
                other.faults[:] = kept
                self._log(
                    f"{other.spec.name} had lost {task.spec.name}: its "
                    "restart does not count."
                )

    def _restart(
        self, task: ManagedTask, end: End, *, after: float, number: int
    ) -> None:
        task.due = end.at + after
        self._log(
            messages.restart_message(
                task.spec.name,
                end,
                after=after,
                number=number,
                limits=self._limits,
            )
        )

    def _is_dispensable(self, task: ManagedTask) -> bool:
        if self._min_workers is None or task.spec.job != "worker":
            return False
        left = [
            t
            for t in self._tasks
            if t.spec.job == "worker" and not t.left_out and t is not task
        ]
        return len(left) >= self._min_workers
