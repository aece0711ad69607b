"""What the tasks of a cluster are to each other."""

from collections.abc import Sequence

from trainer.launch.task import Member


def belongs(member: Member) -> bool:
    """Whether the others cannot go on without it; an evaluator looks on."""
    return member.task.job != "evaluator"


def serves(member: Member, members: Sequence[Member]) -> bool:
    """Whether it only serves a chief, and has no say in the outcome.

    Args:
        member: one of the members.
        members: all of them, the chief first.
    """
    job = member.task.job
    return job == "ps" or (job == "worker" and members[0].task.job == "chief")


def is_spare(member: Member, members: Sequence[Member]) -> bool:
    """Whether the others go on without it: it may leave alone.

    Args:
        member: see `serves`.
        members: see `serves`.
    """
    return serves(member, members) and member.task.job != "ps"
