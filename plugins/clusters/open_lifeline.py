"""Connects all tasks of a cluster with the first one."""

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Any

from plugins.clusters.cluster import Cluster
from plugins.clusters.lifeline import Lifeline
from plugins.clusters.sockets import (
    connect,
    decode,
    encode,
    listen_on,
    look_up,
)
from trainer import StartAgain

_RETRY_SECONDS = 0.1
_PORT_SECONDS = 10.0
_ANSWER_SECONDS = 5.0


def open_lifeline(
    cluster: Cluster,
    *,
    jobs: Sequence[str],
    line: socket.socket | None = None,
    seconds: float = 60.0,
    **options: Any,
) -> Lifeline:
    """Connects this task with the first; right after they have met.

    Uses the first task's own port, which is free again on return.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; the first task is as in `meet`.
        line: the connection to the first task of a run that goes on and has
            taken this task in; see `plugins.clusters.rendezvous.Met`.
        seconds: how long to wait for the others.
        **options: see `Lifeline`.

    Raises:
        StartAgain: a task did not come; it is named.
    """
    tasks = dict(cluster.tasks(*jobs))
    first = next(iter(tasks))
    deadline = time.monotonic() + seconds
    if cluster.name == first:
        connections = _accept(cluster, set(tasks) - {first}, deadline)
    else:
        connections = {first: line or _reach(cluster, tasks[first], deadline)}
    return Lifeline(cluster, tasks, connections, **options)


def _accept(
    cluster: Cluster, others: set[str], deadline: float
) -> dict[str, socket.socket]:
    lines: dict[str, socket.socket] = {}
    if not others:
        return lines
    with listen_on(
        cluster.address, owner=cluster.name, seconds=_PORT_SECONDS
    ) as door:
        while missing := others - set(lines):
            left = deadline - time.monotonic()
            if left <= 0:
                names = ", ".join(sorted(missing))
                raise StartAgain(f"no line to {names}")
            door.settimeout(left)
            with contextlib.suppress(OSError):
                line, _ = door.accept()
                name = _ask(line)
                if name not in missing:
                    line.close()
                    continue
                line.sendall(encode({"name": cluster.name}))
                lines[name] = line
    return lines


def _ask(line: socket.socket) -> str:
    """Who is at the other end; an empty name for a stranger."""
    line.settimeout(_ANSWER_SECONDS)
    try:
        message = decode(line.recv(4096).strip()) or {}
    except OSError:
        line.close()
        raise
    return str(message.get("name", ""))


def _reach(cluster: Cluster, address: str, deadline: float) -> socket.socket:
    targets = look_up(address, seconds=_ANSWER_SECONDS)
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            line = connect(targets, seconds=_ANSWER_SECONDS)
            line.sendall(encode({"name": cluster.name}))
            # Only an answer tells the first task from another listener.
            if _ask(line):
                return line
            line.close()
        time.sleep(_RETRY_SECONDS)
    raise StartAgain(f"no line to the first task at {address}")
