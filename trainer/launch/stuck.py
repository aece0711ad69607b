"""Finds the processes that the launcher has to end."""

from collections.abc import Sequence

from trainer.launch.managed_task import ManagedTask
from trainer.launch.roles import is_spare, serves_chief, takes_part
from trainer.launch.timeouts import Timeouts


def stopped(
    tasks: Sequence[ManagedTask], timeouts: Timeouts, now: float
) -> list[ManagedTask]:
    """Finds tasks that were stopped (SIGSTOP) and not continued.

    Their peers on other hosts have lost them, and cannot end them.

    Args:
        tasks: the tasks.
        timeouts: how long they may be stopped.
        now: the time.
    """
    return [
        task
        for task in tasks
        if task.stopped_at is not None
        and now - task.stopped_at > timeouts.stopped_seconds
    ]


def left_behind(
    tasks: Sequence[ManagedTask], timeouts: Timeouts, before: float
) -> list[ManagedTask]:
    """Finds tasks that are still in a run that a peer has left.

    They save their state and end by themselves, unless they hang. Until then
    a restarted peer cannot meet them.

    Args:
        tasks: the tasks of a cluster of which all are needed.
        timeouts: which tasks may never have been in that run.
        before: the peer left before this time.
    """
    latest = [
        t.left_at
        for t in tasks
        if t.left_at is not None and takes_part(t) and not is_spare(t, tasks)
    ]
    left = [at for at in latest if at < before]
    return [
        task
        for task in filter(takes_part, tasks)
        if task.is_running
        and any(task.started + timeouts.rendezvous_seconds < at for at in left)
    ]


def overdue(
    tasks: Sequence[ManagedTask], timeouts: Timeouts, since: float
) -> list[ManagedTask]:
    """Finds tasks that should have ended, because the run is done.

    Args:
        tasks: the tasks.
        timeouts: how long each may keep running.
        since: seconds since the run was done.
    """
    found = []
    for task in filter(lambda t: t.is_running, tasks):
        kind = "server" if serves_chief(task, tasks) else task.spec.job
        if since > timeouts.leave_seconds[kind]:
            found.append(task)
    return found


def may_wait(
    task: ManagedTask, tasks: Sequence[ManagedTask], *, elastic: bool
) -> bool:
    """Whether an overdue task only waits for peers that have ended.

    Such a task is not to blame.

    Args:
        task: one of the tasks.
        tasks: see `overdue`.
        elastic: whether it may have been away while the others finished.
    """
    # If the first task is overdue itself, only the run's record says that the
    # run is done: the task may have been restarted after that.
    known_from_record = task is tasks[0]
    was_away = elastic or task.restarts > 0
    return serves_chief(task, tasks) or (
        takes_part(task) and (known_from_record or was_away)
    )
