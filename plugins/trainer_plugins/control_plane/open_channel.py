"""Connects all tasks of a cluster with the first one.

A task calls the first one, and each says its name; the caller then says
`{"here": true}`. Without that, the first task would take a caller for
connected that has given up meanwhile, and soon call it lost. Once all are
there it says `{"all": true}`: none goes on to TensorFlow before, which would
wait for the others and keep every other thread of Python from running.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainer import StartAgain
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.channel import Lifeline
from trainer_plugins.control_plane.rendezvous_messages import read_message
from trainer_plugins.control_plane.sockets import (
    connect,
    encode,
    listen_on,
    look_up,
)

_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 0.1
_PORT_SECONDS = 10.0
_ANSWER_SECONDS = 5.0


def open_lifeline(
    cluster: Cluster,
    *,
    jobs: Sequence[str],
    line: socket.socket | None = None,
    seconds: float = 10.0,
    **options: Any,
) -> Lifeline:
    """Connects this task with the first; right after they have met.

    Uses the first task's own port, which is free again on return.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; the first task is as in `meet`.
        line: the connection to the first task of a run that goes on and has
            taken this task in; see `rendezvous.Met`.
        seconds: how long the first task waits for the others. They wait for
            it twice as long: it knows best who is missing.
        **options: see `Lifeline`.

    Raises:
        StartAgain: a task did not come; it is named.
    """
    tasks = dict(cluster.tasks(*jobs))
    first = next(iter(tasks))
    leads = cluster.name == first
    connections = {}
    if not leads:
        connections[first] = line or _reach(cluster, tasks, 2 * seconds)
    # The first task beats on each line at once: who has come early must not
    # take it for a silent one.
    lifeline = Lifeline(cluster, tasks, connections, **options)
    try:
        if leads and lifeline.others:
            _Reception(lifeline).run(seconds)
            lifeline.tell({"all": True})
        elif not leads and line is None:
            lifeline.hear(first, 2 * seconds)
    except BaseException as error:
        lifeline.leave(error)
        raise
    return lifeline


class _Reception:
    """Where the others come to the first task.

    Args:
        lifeline: the first task's; gets a line to each of them.
    """

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._missing = lifeline.others
        self._lock = threading.Lock()

    def run(self, seconds: float) -> None:
        """Returns when all are there.

        Raises:
            StartAgain: somebody is not.
        """
        cluster = self._lifeline.cluster
        with listen_on(
            cluster.address, owner=cluster.name, seconds=_PORT_SECONDS
        ) as door:
            door.settimeout(_LOOK_SECONDS)
            deadline = time.monotonic() + seconds
            while self._missing and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    line, _ = door.accept()
                    # Each on a thread: a silent stranger holds nobody up.
                    threading.Thread(
                        target=self._greet, args=(line,), daemon=True
                    ).start()
        with self._lock:
            missing, self._missing = self._missing, []
        if missing:
            names = ", ".join(map(cluster.label, missing))
            raise StartAgain(self._lifeline.over or f"no line to {names}")

    def _greet(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            hello = read_message(line, seconds=_ANSWER_SECONDS) or {}
            name = hello.get("name")
            if name in self._missing:
                line.sendall(encode({"name": self._lifeline.name}))
                answer = read_message(line, seconds=_ANSWER_SECONDS) or {}
                if "here" in answer and self._take_in(name, line):
                    return
        line.close()

    def _take_in(self, name: str, line: socket.socket) -> bool:
        """Adds a line; whether it is still wanted."""
        with self._lock:
            if name not in self._missing:
                return False
            self._lifeline.add(name, line)
            self._missing.remove(name)
            return True


def _reach(
    cluster: Cluster, tasks: Mapping[str, str], seconds: float
) -> socket.socket:
    first, address = next(iter(tasks.items()))
    targets: list[tuple[Any, Any]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # A name server may fail for a moment, too.
        with contextlib.suppress(OSError):
            targets = targets or look_up(address, seconds=_ANSWER_SECONDS)
            line = connect(targets, seconds=_ANSWER_SECONDS)
            if _introduce(line, cluster.name, first):
                return line
        time.sleep(_RETRY_SECONDS)
    raise StartAgain(f"no line to {cluster.label(first)}")


def _introduce(line: socket.socket, own: str, first: str) -> bool:
    """Whether the first task is at the other end; closes the line if not."""
    with contextlib.suppress(OSError):
        line.sendall(encode({"name": own}))
        answer = read_message(line, seconds=_ANSWER_SECONDS) or {}
        # Only an answer tells the first task from another listener.
        if answer.get("name") == first:
            line.sendall(encode({"here": True}))
            return True
    line.close()
    return False
