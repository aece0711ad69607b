"""Which processes will not end by themselves, so that somebody has to."""

from collections.abc import Sequence

from trainer.launch.roles import belongs, is_spare, serves
from trainer.launch.task import Member
from trainer.launch.timeouts import Patience


def stopped(
    members: Sequence[Member], patience: Patience, now: float
) -> list[Member]:
    """Those that somebody has stopped (SIGSTOP), and not continued.

    The tasks of other hosts have lost them, and cannot end them.

    Args:
        members: the tasks.
        patience: how long they may be.
        now: the time.
    """
    return [
        member
        for member in members
        if member.stopped_at is not None
        and now - member.stopped_at > patience.stopped_seconds
    ]


def left_behind(
    members: Sequence[Member], patience: Patience, before: float
) -> list[Member]:
    """Those that still are in a run that a peer has left.

    They save what is to be saved and end themselves, if they do not hang.
    Until then nobody can meet them.

    Args:
        members: the tasks of a cluster of which all are needed.
        patience: tells who may never have been in that run.
        before: the peer has left before that time.
    """
    latest = [
        m.left_at
        for m in members
        if m.left_at is not None and belongs(m) and not is_spare(m, members)
    ]
    left = [at for at in latest if at < before]
    return [
        member
        for member in filter(belongs, members)
        if member.is_running
        and any(member.started + patience.met_seconds < at for at in left)
    ]


def late(
    members: Sequence[Member], patience: Patience, since: float
) -> list[Member]:
    """Those that should have ended, for the run is done.

    Args:
        members: the tasks.
        patience: how long each may go on.
        since: for so many seconds it has been done.
    """
    found = []
    for member in filter(lambda m: m.is_running, members):
        kind = "server" if serves(member, members) else member.task.job
        if since > patience.leave_seconds[kind]:
            found.append(member)
    return found


def may_wait(
    member: Member, members: Sequence[Member], *, elastic: bool
) -> bool:
    """Whether a late one only waits for who has ended: no reason to blame it.

    Args:
        member: one of the members.
        members: see `late`.
        elastic: whether it may have been away while the others finished.
    """
    # While the first task still runs, only the run's record says it is done.
    has_told = member is members[0]
    was_away = elastic or member.restarts > 0
    return serves(member, members) or (
        belongs(member) and (has_told or was_away)
    )
