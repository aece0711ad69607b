"""All tasks of a cluster meet before TensorFlow starts.

TensorFlow waits for missing peers for up to an hour, and says nothing. So the
tasks meet here first, on the very ports that TensorFlow takes over: within a
limit, every task either knows that all others are there and alike, or says
who is not. Like TensorFlow's own ports, these trust the network they are in.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from plugins.clusters.cluster import Cluster
from plugins.clusters.rendezvous_leader import Leader
from plugins.clusters.rendezvous_verdict import missing
from plugins.clusters.sockets import (
    MOST_BYTES,
    connect,
    decode,
    encode,
    listen_on,
    look_up,
    split_lines,
)
from trainer import StartAgain, UserError

# How long a task that is just ending may still hold the port.
_PORT_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.25
# The leader says every second who is missing; a silent one is gone.
_SILENCE_SECONDS = 15.0
# Who is with the leader lets it speak first: it knows best who is missing.
_VERDICT_SECONDS = 1.0


def meet(
    cluster: Cluster,
    *,
    jobs: Sequence[str],
    facts: Mapping[str, Any],
    timeout_seconds: float = 120.0,
) -> None:
    """Returns when every task of some jobs is there.

    The first task (the chief, or else worker 0) leads: it listens on its own
    address, and the others come to it. Each holds its own port meanwhile.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; a task of another job returns at once.
        facts: what must be equal everywhere, such as versions; values that
            JSON can hold.
        timeout_seconds: how long this task waits for the others.

    Raises:
        StartAgain: a task did not come; the message names it.
        UserError: the tasks differ, two say that they are the same one, or
            this task's own port is taken.
    """
    members = dict(cluster.tasks(*jobs))
    if cluster.job not in jobs or len(members) < 2:
        return
    deadline = time.monotonic() + timeout_seconds
    hello = {
        "name": cluster.name,
        "tasks": members,
        "facts": json.loads(json.dumps(dict(facts), default=str)),
    }
    with listen_on(
        cluster.address,
        owner=cluster.name,
        seconds=min(_PORT_SECONDS, timeout_seconds),
    ) as listener:
        if cluster.name == next(iter(members)):
            leader = Leader(
                listener, hello, deadline=deadline, seconds=timeout_seconds
            )
            leader.run()
        else:
            _Follower(hello, deadline, timeout_seconds).run()
    logging.info("All %d tasks are there.", len(members))


class _Follower:
    """Goes to the leader and waits for its verdict."""

    def __init__(
        self, hello: dict[str, Any], deadline: float, seconds: float
    ) -> None:
        self._hello = hello
        self._deadline = deadline
        self._seconds = seconds
        tasks: dict[str, str] = hello["tasks"]
        self._leader = next(iter(tasks))
        self._address = tasks[self._leader]
        self._targets: list[tuple[Any, Any]] = []
        self._waiting = [self._leader]
        self._note = ""

    def run(self) -> None:
        while (left := self._left()) > 0:
            try:
                if self._visit():
                    return
            except OSError as error:
                self._note = f" ({error.strerror or error})"
            self._waiting = [self._leader]
            time.sleep(min(_RETRY_SECONDS, left))
        raise StartAgain(
            missing(self._waiting, self._hello["tasks"], self._seconds)
            + self._note
        )

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _visit(self) -> bool:
        """One connection to the leader; whether all are there."""
        seconds = min(_CONNECT_SECONDS, self._left())
        # Once: a name server must not be asked four times a second.
        self._targets = self._targets or look_up(self._address, seconds=seconds)
        with connect(self._targets, seconds=seconds) as connection:
            self._note = " (another program answers there)"
            connection.sendall(encode(self._hello))
            buffer = bytearray()
            while len(buffer) < MOST_BYTES:
                limit = self._left() + _VERDICT_SECONDS
                if limit <= 0:
                    break
                connection.settimeout(min(_SILENCE_SECONDS, limit))
                try:
                    received = connection.recv(65536)
                except TimeoutError:
                    break
                if not received:
                    break
                buffer += received
                for line in split_lines(buffer):
                    message = decode(line)
                    if message is None:
                        return False
                    if self._obey(message):
                        return True
        # Time is up: what the leader said last is still true.
        if self._left() <= 0 and not self._note:
            raise StartAgain(
                missing(self._waiting, self._hello["tasks"], self._seconds)
            )
        return False

    def _obey(self, message: dict[str, Any]) -> bool:
        if "waiting" in message:
            self._waiting = [str(name) for name in message["waiting"]]
            self._note = ""
        if "missing" in message:
            raise StartAgain(str(message["missing"]))
        if "error" in message:
            raise UserError(str(message["error"]))
        return message.get("go") is True
