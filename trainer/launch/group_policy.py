"""What follows from the end of one task for the whole group."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_START_AGAIN
from trainer.launch import messages
from trainer.launch.policy import (
    End,
    Limits,
    Restart,
    decide,
    is_consequence,
    is_symptom,
    recent,
)
from trainer.launch.roles import belongs
from trainer.launch.task import Member


class Failure(NamedTuple):
    """Why a group cannot go on.

    Attributes:
        member: the one that failed for good.
        end: how it ended; `None` for one that went on too long after the
            chief's good end.
        why: a sentence; empty where the end says it all.
    """

    member: Member
    end: End | None = None
    why: str = ""


class Judge:
    """Starts tasks again, leaves one out, or finds that all have to end.

    Args:
        members: the tasks of the group.
        limits: how often each may be started again.
        min_workers: how many workers are enough to go on without another
            one; `None` if all are needed.
        say: is handed a sentence for each of these decisions.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        limits: Limits,
        min_workers: int | None,
        say: Callable[[str], None],
    ) -> None:
        self._members = members
        self._limits = limits
        self._min_workers = min_workers
        self._say = say

    @property
    def min_workers(self) -> int | None:
        """As given."""
        return self._min_workers

    @property
    def is_elastic(self) -> bool:
        """Whether a run may go on without some of its tasks."""
        return self._min_workers is not None

    def judge(self, member: Member, end: End) -> Failure | None:
        """Plans the next start of a task that ended.

        Args:
            member: the task.
            end: its end.

        Returns:
            What ends the group; `None` if it goes on.
        """
        if self._limits.max_restarts and self._is_for_others(member, end):
            self._restart(member, end, after=0.0, number=0)
            return None
        member.faults.append(end)
        self._pardon_symptoms(member, end)
        decision = decide(member.faults, self._limits)
        if isinstance(decision, Restart):
            number = len(recent(member.faults, self._limits))
            self._restart(member, end, after=decision.after, number=number)
            return None
        if decision.defect or not self._is_dispensable(member):
            return Failure(member, end, decision.why)
        member.left_out = True
        self._say(
            f"{member.task.name} {messages.how(end)}. {decision.why} "
            f"The others go on without it: --min_workers={self._min_workers}."
        )
        return None

    def _is_for_others(self, member: Member, end: End) -> bool:
        """Whether a task that ended need not be counted."""
        others = [m for m in self._members if m is not member]
        if end.returncode == EXIT_START_AGAIN and (
            end.for_others
            # It is lost to its peers; its own end is still to come.
            or any(m.stopped_at is not None for m in filter(belongs, others))
        ):
            return True
        return is_consequence(end, [f for m in others for f in m.faults])

    def _pardon_symptoms(self, member: Member, fault: End) -> None:
        for other in self._members:
            kept = [end for end in other.faults if not is_symptom(end, fault)]
            if other is not member and len(kept) < len(other.faults):
                other.faults[:] = kept
                self._say(
                    f"{other.task.name} had lost {member.task.name}: its "
                    "restart does not count."
                )

    def _restart(
        self, member: Member, end: End, *, after: float, number: int
    ) -> None:
        member.due = end.at + after
        self._say(
            messages.starting_again(
                member.task.name,
                end,
                after=after,
                number=number,
                limits=self._limits,
            )
        )

    def _is_dispensable(self, member: Member) -> bool:
        if self._min_workers is None or member.task.job != "worker":
            return False
        left = [
            m
            for m in self._members
            if m.task.job == "worker" and not m.left_out and m is not member
        ]
        return len(left) >= self._min_workers
