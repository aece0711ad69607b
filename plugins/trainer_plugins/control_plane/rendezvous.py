"""All tasks of a cluster meet before TensorFlow starts.

TensorFlow waits for missing peers for up to an hour, and says nothing. So the
tasks meet here first, on the very ports that TensorFlow takes over: within a
limit, every task either knows that all others are there and alike, or says
who is not. Like TensorFlow's own ports, these trust the network they are in.

A task that comes back to a run that goes on finds no meeting any more. It
waits all the same, and the first task of the run comes to it: `knock`.
"""

import json
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from trainer import StartAgain, UserError
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.rendezvous_meeting import Meeting, Outcome
from trainer_plugins.control_plane.rendezvous_members import Roster
from trainer_plugins.control_plane.rendezvous_messages import read_message
from trainer_plugins.control_plane.sockets import (
    connect,
    encode,
    listen_on,
    look_up,
)

# How long a task that is just ending may still hold the port.
_PORT_SECONDS = 10.0
_SEND_SECONDS = 5.0
# All that may meet; evaluators stand beside.
_JOBS = ("chief", "worker", "ps")


class Met(NamedTuple):
    """What a meeting came to.

    Attributes:
        cluster: the tasks that take part. In an elastic cluster some may be
            missing; the workers are then numbered anew, and
            `cluster.origin` is the cluster as it was given.
        line: set where this task came back to a run that goes on: the
            connection to the running first task, which called this one.
    """

    cluster: Cluster
    line: socket.socket | None


def meet(
    cluster: Cluster,
    *,
    jobs: Sequence[str],
    facts: Mapping[str, Any],
    timeout_seconds: float = 120.0,
    min_workers: int | None = None,
    settle_seconds: float = 15.0,
    silence_seconds: float = 15.0,
) -> Met:
    """Returns when the tasks of some jobs are there.

    The first task (the chief, or else worker 0) leads: it listens on its own
    address, and the others come to it. Each holds its own port meanwhile.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; a task of another job returns at once.
        facts: what must be equal everywhere, such as versions; values that
            JSON can hold.
        timeout_seconds: how long this task waits for the others.
        min_workers: makes the cluster elastic: so many tasks, the chief
            counted, are enough. The first of those that are there leads.
            `None`: all must be there.
        settle_seconds: when an elastic cluster is not complete: for how long
            nobody new must have come.
        silence_seconds: a leader of which nothing is heard for so long is
            gone: another one leads.

    Returns:
        The tasks that take part. Where a run that goes on has taken this task
        in, the connection to it as well; this task's port is free.

    Raises:
        StartAgain: a task did not come; the message names it.
        UserError: the tasks differ, two say that they are the same one,
            this task's own port is taken, or `min_workers` cannot be had.
    """
    tasks = dict(cluster.tasks(*jobs))
    if cluster.job not in jobs:
        return Met(cluster, None)
    if min_workers is not None:
        _check(tasks, min_workers)
        facts = {**facts, "min_workers": min_workers}
    if len(tasks) < 2:
        return Met(cluster, None)
    hello = {**_introduction(cluster, tasks, facts), "id": uuid.uuid4().hex}
    roster = Roster(
        hello,
        seconds=timeout_seconds,
        min_workers=min_workers,
        settle_seconds=settle_seconds,
    )
    with listen_on(
        cluster.address,
        owner=cluster.name,
        seconds=min(_PORT_SECONDS, timeout_seconds),
    ) as listener:
        outcome = Meeting(
            listener, hello, roster, silence_seconds=silence_seconds
        ).run()
    count = len(outcome.members)
    logging.info("%d of %d tasks are there.", count, len(tasks))
    _thank(outcome)
    return Met(cluster.among(outcome.members), outcome.line)


def _check(tasks: Mapping[str, str], min_workers: int) -> None:
    if any(name.startswith("ps ") for name in tasks):
        raise UserError(
            "min_workers is for clusters without parameter servers: there a "
            "worker may be lost anyway. Leave it out."
        )
    if not 1 <= min_workers <= len(tasks):
        raise UserError(
            f"min_workers is {min_workers}, but the cluster has {len(tasks)} "
            f"workers. Choose 1 to {len(tasks)}."
        )


def _introduction(
    cluster: Cluster, tasks: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "tasks": dict(tasks),
        "facts": json.loads(json.dumps(dict(facts), default=str)),
    }


def _thank(outcome: Outcome) -> None:
    """Tells the run that has taken this task in that its port is free."""
    if outcome.line is None:
        return
    outcome.line.settimeout(_SEND_SECONDS)
    try:
        outcome.line.sendall(encode({"admitted": True}))
    except OSError:
        outcome.line.close()
        raise StartAgain("the run ended that took this task in") from None


def knock(
    address: str, *, cluster: Cluster, seconds: float = 1.0
) -> socket.socket | None:
    """Asks from a run that goes on whether a task waits at an address.

    Args:
        address: the absent task's `host:port`.
        cluster: this run's cluster; an elastic one may be what `meet` made.
        seconds: how long this may take.

    Returns:
        An open connection if a task of this same cluster waits in `meet`
        there; `admit` it or close it. `None` otherwise.
    """
    given = cluster.origin or cluster
    tasks = dict(given.tasks(*_JOBS))
    question = {"knock": {"name": given.name, "tasks": tasks}}
    deadline = time.monotonic() + seconds
    try:
        line = connect(look_up(address, seconds=seconds), seconds=seconds)
    except OSError:
        return None
    try:
        line.sendall(encode(question))
        left = deadline - time.monotonic()
        answer = read_message(line, seconds=left) or {}
        if tasks.get(str(answer.get("waits"))) == address:
            return line
    except OSError:
        pass
    line.close()
    return None


def admit(
    line: socket.socket,
    *,
    cluster: Cluster,
    facts: Mapping[str, Any],
    seconds: float = 5.0,
) -> bool:
    """Lets a waiting task into the run that goes on.

    Args:
        line: what `knock` returned.
        cluster: this run's cluster.
        facts: as in `meet`.
        seconds: how long this may take.

    Returns:
        Whether it is in: then its `meet` has returned with the other end of
        `line`. Else `line` is closed; a task that differs ends with a
        `UserError` that says in what.
    """
    tasks = dict(cluster.tasks(*_JOBS))
    try:
        line.sendall(encode({"admit": _introduction(cluster, tasks, facts)}))
        answer = read_message(line, seconds=seconds) or {}
        if answer.get("admitted") is True:
            return True
        reason = str(answer.get("error", "it answers nonsense"))
    except OSError as error:
        reason = error.strerror or str(error)
    logging.warning("A task was not let in: %s", reason)
    line.close()
    return False
