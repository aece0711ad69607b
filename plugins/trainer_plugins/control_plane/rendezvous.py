"""The rendezvous of all tasks of a cluster, before TensorFlow starts.

TensorFlow waits silently for missing peers for up to an hour. So the tasks
meet here first, on the ports that TensorFlow takes over later. Within a time
limit, every task either knows that all others are present and have the same
facts, or says which do not. Like TensorFlow's own ports, these trust the
network they are in.

A task that restarts while its run goes on finds no rendezvous. It waits
anyway, and the run's first task connects to it: `connect_to_waiting`.
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
from trainer_plugins.control_plane.rendezvous_members import Members
from trainer_plugins.control_plane.rendezvous_messages import read_message
from trainer_plugins.control_plane.rendezvous_participant import (
    Outcome,
    Participant,
)
from trainer_plugins.control_plane.sockets import (
    connect,
    encode,
    listen_on,
    look_up,
)

# How long an earlier attempt that is just ending may still hold the port.
_PORT_SECONDS = 10.0
_SEND_SECONDS = 5.0
# The jobs that may take part. Evaluators work on their own.
_JOBS = ("chief", "worker", "ps")


class Met(NamedTuple):
    """The result of a rendezvous.

    Attributes:
        cluster: the tasks that take part. In an elastic cluster some may be
            missing; the workers are then renumbered, and `cluster.origin` is
            the cluster as it was given.
        connection: set where this task rejoins a running job: the connection
            that the job's first task made to this one.
    """

    cluster: Cluster
    connection: socket.socket | None


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
    """Blocks until the tasks of some jobs are present.

    The first task (the chief, or else worker 0) leads: it listens on its own
    address, and the others connect to it. Each holds its own port meanwhile.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; a task of another job returns at once.
        facts: what must be equal everywhere, such as versions; JSON values.
        timeout_seconds: how long this task waits for the others.
        min_workers: makes the cluster elastic: this many tasks, including
            the chief, are enough. The first of those present leads. `None`
            requires all of them.
        settle_seconds: an incomplete elastic cluster starts once no new task
            has joined for this long.
        silence_seconds: a leader that is silent for this long is replaced.

    Returns:
        The tasks that take part; also the connection to a running job, if
        one has accepted this task. This task's port is free again.

    Raises:
        StartAgain: a task is missing; the message names it.
        UserError: the tasks differ, two claim to be the same one, this
            task's own port is taken, or `min_workers` is impossible.
    """
    tasks = dict(cluster.tasks(*jobs))
    if cluster.job not in jobs:
        return Met(cluster, None)
    if min_workers is not None:
        _check(tasks, min_workers)
        # It must be the same everywhere, because any task may come to lead and
        # decide.
        facts = {**facts, "min_workers": min_workers}
    if len(tasks) < 2:
        return Met(cluster, None)
    # The id tells a process that connects again from a second one with the same
    # name.
    hello = {**_introduction(cluster, tasks, facts), "id": uuid.uuid4().hex}
    members = Members(
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
        outcome = Participant(
            listener, hello, members, silence_seconds=silence_seconds
        ).run()
    count = len(outcome.members)
    logging.info("%d of %d tasks are present.", count, len(tasks))
    # Not before the listener is closed: the run's TensorFlow connects to this
    # port next.
    _confirm(outcome)
    return Met(cluster.among(outcome.members), outcome.connection)


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
        # As they arrive at the others, so that the task's own facts compare
        # equal: JSON turns a tuple into a list.
        "facts": json.loads(json.dumps(dict(facts), default=str)),
    }


def _confirm(outcome: Outcome) -> None:
    """Notifies the run that accepted this task that the port is free."""
    if outcome.connection is None:
        return
    outcome.connection.settimeout(_SEND_SECONDS)
    try:
        outcome.connection.sendall(encode({"admitted": True}))
    except OSError:
        outcome.connection.close()
        raise StartAgain("the run that accepted this task has ended") from None


def connect_to_waiting(
    address: str, *, cluster: Cluster, seconds: float = 1.0
) -> socket.socket | None:
    """Connects a running job to a task that waits to rejoin it.

    Args:
        address: the absent task's `host:port`.
        cluster: the job's cluster; an elastic one may be the result of `meet`.
        seconds: how long this may take.

    Returns:
        An open connection if a task of this same cluster waits in `meet` at
        that address: pass it to `add_to_run`, or close it. `None` otherwise.
    """
    given = cluster.origin or cluster
    tasks = dict(given.tasks(*_JOBS))
    question = {"knock": {"name": given.name, "tasks": tasks}}
    deadline = time.monotonic() + seconds
    try:
        targets = look_up(address, seconds=seconds)
        connection = connect(targets, seconds=seconds)
    except OSError:
        return None
    try:
        connection.sendall(encode(question))
        left = deadline - time.monotonic()
        answer = read_message(connection, seconds=left) or {}
        # Another program, or a task of another cluster, may have the address.
        if tasks.get(str(answer.get("waits"))) == address:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def add_to_run(
    connection: socket.socket,
    *,
    cluster: Cluster,
    facts: Mapping[str, Any],
    seconds: float = 5.0,
) -> bool:
    """Adds a waiting task to the running job.

    Args:
        connection: the result of `connect_to_waiting`.
        cluster: the job's cluster.
        facts: as in `meet`.
        seconds: how long this may take.

    Returns:
        Whether the task was added: its `meet` has then returned with the
        other end of `connection`. Otherwise `connection` is closed. A task
        with other facts ends with a `UserError` that names the difference.
    """
    tasks = dict(cluster.tasks(*_JOBS))
    introduction = _introduction(cluster, tasks, facts)
    try:
        connection.sendall(encode({"admit": introduction}))
        answer = read_message(connection, seconds=seconds) or {}
        if answer.get("admitted") is True:
            return True
        reason = str(answer.get("error", "its answer is not understood"))
    except OSError as error:
        reason = error.strerror or str(error)
    logging.warning("A task could not rejoin: %s", reason)
    connection.close()
    return False
