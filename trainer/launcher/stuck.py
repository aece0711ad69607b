"""Which processes will not end by themselves, so that somebody has to."""

from collections.abc import Sequence

from trainer.launcher.member import Member
from trainer.launcher.patience import Patience
from trainer.launcher.roles import belongs, is_spare


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
