"""Connects all tasks of a cluster to the first one.

A task connects to the first one, both send their names, and the task confirms
with `{"here": true}`. Without that, the first task would count a peer as
connected that has given up meanwhile, and soon report it lost. Once all are
connected, the first task sends `{"all": true}`. No task goes on to TensorFlow
before that: it would wait for the others while it holds Python's lock.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainer import StartAgain
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.rendezvous_messages import read_message
from trainer_plugins.control_plane.sockets import (
    connect,
    encode,
    listen_on,
    look_up,
)

# The last task is added by a thread of its own; the loop has to return from
# `accept` to notice.
_ACCEPT_SECONDS = 0.05
_RETRY_SECONDS = 0.1
_PORT_SECONDS = 10.0
_ANSWER_SECONDS = 5.0


def open_channel(
    cluster: Cluster,
    *,
    jobs: Sequence[str],
    connection: socket.socket | None = None,
    seconds: float = 10.0,
    **options: Any,
) -> Channel:
    """Connects this task to the first one, right after the rendezvous.

    Uses the first task's own port, which is free again on return.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; the first task is as in `meet`.
        connection: set where this task rejoins a running job: the connection
            to its first task, see `rendezvous.Met`.
        seconds: how long the first task waits for the others. They wait
            twice as long for it, because it knows best which are missing.
        **options: see `Channel`.

    Raises:
        StartAgain: a task did not connect; it is named.
    """
    tasks = dict(cluster.tasks(*jobs))
    first = next(iter(tasks))
    leads = cluster.name == first
    sockets = {}
    if not leads:
        sockets[first] = connection or _connect(cluster, tasks, 2 * seconds)
    # The first task sends heartbeats on each connection at once. Otherwise a
    # task that connects early would take it for a silent one.
    channel = Channel(cluster, tasks, sockets, **options)
    try:
        if leads and channel.others:
            _Acceptor(channel).run(seconds)
            channel.broadcast({"all": True})
        elif not leads and connection is None:
            # Waits for `all`. A task that rejoins a run needs no such message:
            # the run is already going on.
            channel.receive(first, 2 * seconds)
    except BaseException as error:
        # Also after Ctrl-C or SIGTERM: the others should learn the reason, and
        # not merely see a broken connection.
        channel.leave(error)
        raise
    return channel


class _Acceptor:
    """Accepts the connections of the other tasks in the first one.

    Args:
        channel: the first task's; each connection is added to it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._missing = channel.others
        self._lock = threading.Lock()

    def run(self, seconds: float) -> None:
        """Blocks until all tasks are connected.

        Raises:
            StartAgain: a task is missing.
        """
        cluster = self._channel.cluster
        with listen_on(
            cluster.address, owner=cluster.name, seconds=_PORT_SECONDS
        ) as listener:
            listener.settimeout(_ACCEPT_SECONDS)
            deadline = time.monotonic() + seconds
            while self._missing and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    # Each has its own thread, so that a port scanner that
                    # sends nothing does not delay the tasks.
                    threading.Thread(
                        target=self._handshake, args=(connection,), daemon=True
                    ).start()
        with self._lock:
            # A handshake that is still under way then finds its task no longer
            # missing, and closes the connection.
            missing, self._missing = self._missing, []
        if missing:
            names = ", ".join(map(cluster.label, missing))
            raise StartAgain(
                self._channel.end_reason or f"no connection to {names}"
            )

    def _handshake(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            hello = read_message(connection, seconds=_ANSWER_SECONDS) or {}
            name = hello.get("name")
            # Only a first look; `_add` decides, under the lock.
            if name in self._missing:
                connection.sendall(encode({"name": self._channel.name}))
                answer = read_message(connection, seconds=_ANSWER_SECONDS) or {}
                if "here" in answer and self._add(name, connection):
                    return
        connection.close()

    def _add(self, name: str, connection: socket.socket) -> bool:
        """Adds a connection; returns whether the task was still missing."""
        with self._lock:
            if name not in self._missing:
                return False
            # In this order: once no task is missing, `run` returns, and `all`
            # is sent to the connections of the channel.
            self._channel.add(name, connection)
            self._missing.remove(name)
            return True


def _connect(
    cluster: Cluster, tasks: Mapping[str, str], seconds: float
) -> socket.socket:
    first, address = next(iter(tasks.items()))
    targets: list[tuple[Any, Any]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # A name server may fail temporarily, too.
        with contextlib.suppress(OSError):
            targets = targets or look_up(address, seconds=_ANSWER_SECONDS)
            connection = connect(targets, seconds=_ANSWER_SECONDS)
            if _introduce(connection, cluster.name, first):
                return connection
        time.sleep(_RETRY_SECONDS)
    raise StartAgain(f"no connection to {cluster.label(first)}")


def _introduce(connection: socket.socket, own: str, first: str) -> bool:
    """Returns whether the first task answers; else closes the connection."""
    with contextlib.suppress(OSError):
        connection.sendall(encode({"name": own}))
        answer = read_message(connection, seconds=_ANSWER_SECONDS) or {}
        # TensorFlow or another program may listen on this port by now. Only
        # the answer tells them from the first task.
        if answer.get("name") == first:
            connection.sendall(encode({"here": True}))
            return True
    connection.close()
    return False
