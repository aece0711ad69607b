"""The task that the others come to: it knows who is there."""

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from plugins.clusters.rendezvous_verdict import difference, missing
from plugins.clusters.sockets import MOST_BYTES, decode, encode, split_lines
from trainer import StartAgain, UserError

_TICK_SECONDS = 1.0
# A visitor that has not said by then who it is is sent away.
_HELLO_SECONDS = 10.0
# When something is wrong, the others still have this long to come and hear it.
_LINGER_SECONDS = 5.0
_GOODBYE_SECONDS = 5.0
_MOST_STRANGERS = 64
_WARN_AFTER_SECONDS = 10.0
_WARN_EVERY_SECONDS = 30.0


class _Visitor:
    """One connection, and what came over it."""

    def __init__(self, connection: socket.socket, origin: str) -> None:
        self.connection = connection
        self.origin = origin
        self.since = time.monotonic()
        self.buffer = bytearray()
        self.name: str | None = None


class Leader:
    """Collects the tasks of a cluster and tells them the verdict.

    Args:
        listener: listens on this task's own port; it stays open.
        hello: this task's `name`, `tasks` (every task's address) and `facts`.
        deadline: when to stop waiting, on the monotonic clock.
        seconds: how long that is, for messages.
    """

    def __init__(
        self,
        listener: socket.socket,
        hello: dict[str, Any],
        *,
        deadline: float,
        seconds: float,
    ) -> None:
        self._listener = listener
        self._tasks: dict[str, str] = hello["tasks"]
        self._hellos = {hello["name"]: hello}
        self._origins = {hello["name"]: "the leader's own process"}
        self._deadline = deadline
        self._seconds = seconds
        self._visitors: set[_Visitor] = set()
        self._problem: str | None = None
        self._problem_since = 0.0
        self._next_warning = time.monotonic() + _WARN_AFTER_SECONDS

    def run(self) -> None:
        """Waits for all, tells them so, and lets them leave first.

        Raises:
            StartAgain: a task did not come in time.
            UserError: the tasks do not fit together.
        """
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(self._listener, selectors.EVENT_READ, None)
            try:
                verdict = self._wait()
                self._tell(verdict)
                self._see_off()
            finally:
                for visitor in list(self._visitors):
                    self._drop(visitor)
        if "error" in verdict:
            raise UserError(verdict["error"])
        if "missing" in verdict:
            raise StartAgain(verdict["missing"])

    def _missing(self) -> list[str]:
        return [name for name in self._tasks if name not in self._hellos]

    def _wait(self) -> dict[str, Any]:
        next_tick = time.monotonic()
        while True:
            now, absent = time.monotonic(), self._missing()
            over = now >= self._deadline
            lingered = now >= self._problem_since + _LINGER_SECONDS
            if self._problem and (over or lingered or not absent):
                return {"error": difference(self._hellos) or self._problem}
            if not absent:
                return {"go": True}
            if over:
                text = missing(absent, self._tasks, self._seconds)
                return {"missing": text}
            if now >= next_tick:
                next_tick = now + _TICK_SECONDS
                self._tell({"waiting": absent})
                self._send_strangers_away(now)
                self._warn(now, absent)
            limit = min(next_tick, self._deadline) - now
            self._handle_events(max(limit, 0.01))

    def _handle_events(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._welcome()
            elif key.data in self._visitors:
                self._listen_to(key.data)

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            connection, origin = self._listener.accept()
            connection.setblocking(False)
            visitor = _Visitor(connection, str(origin[0]))
            self._visitors.add(visitor)
            self._selector.register(connection, selectors.EVENT_READ, visitor)
        strangers = [v for v in self._visitors if v.name is None]
        if len(strangers) > _MOST_STRANGERS + len(self._tasks):
            self._drop(min(strangers, key=lambda v: v.since))

    def _listen_to(self, visitor: _Visitor) -> None:
        try:
            received = visitor.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        visitor.buffer += received
        if not received or len(visitor.buffer) > MOST_BYTES:
            self._drop(visitor)
            return
        for line in split_lines(visitor.buffer):
            if visitor.name is None:
                self._identify(visitor, line)

    def _identify(self, visitor: _Visitor, line: bytes) -> None:
        hello = decode(line)
        if hello is None or not _is_hello(hello):
            logging.info("A stranger called from %s.", visitor.origin)
            self._drop(visitor)
            return
        name = hello["name"]
        visitor.name = name
        if name in self._hellos:
            self._complain(
                f"Two processes say that they are {name}: {visitor.origin} "
                f"and {self._origins[name]}. Give each its own task index."
            )
            # It hears the verdict, but its leaving must not count.
            visitor.name = ""
            return
        self._hellos[name] = hello
        self._origins[name] = visitor.origin
        if name not in self._tasks:
            self._complain(f"{name} is none of this cluster's tasks.")
        elif problem := difference(self._hellos):
            self._complain(problem)

    def _complain(self, problem: str) -> None:
        if self._problem is None:
            self._problem = problem
            self._problem_since = time.monotonic()

    def _tell(self, message: dict[str, Any]) -> None:
        line = encode(message)
        for visitor in [v for v in self._visitors if v.name is not None]:
            try:
                visitor.connection.sendall(line)
            except OSError:
                self._drop(visitor)

    def _drop(self, visitor: _Visitor) -> None:
        self._visitors.discard(visitor)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(visitor.connection)
        visitor.connection.close()
        # Who differs has been noted; who just went away may come back.
        if visitor.name and self._problem is None:
            self._hellos.pop(visitor.name, None)

    def _send_strangers_away(self, now: float) -> None:
        for visitor in list(self._visitors):
            if visitor.name is None and now > visitor.since + _HELLO_SECONDS:
                self._drop(visitor)

    def _warn(self, now: float, absent: list[str]) -> None:
        if now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_SECONDS
            logging.warning(
                "Waiting for %s.",
                ", ".join(f"{n} ({self._tasks[n]})" for n in absent),
            )

    def _see_off(self) -> None:
        """Lets the others close first: then no port waits on this side."""
        for visitor in [v for v in self._visitors if v.name is None]:
            self._drop(visitor)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for visitor in _until(deadline, self._visitors):
            left = deadline - time.monotonic()
            self._handle_leaving(visitor, max(left, 0.01))

    def _handle_leaving(self, visitor: _Visitor, seconds: float) -> None:
        visitor.connection.settimeout(seconds)
        try:
            if visitor.connection.recv(65536):
                return
        except OSError:
            pass
        self._drop(visitor)


def _until(deadline: float, visitors: set[_Visitor]) -> Iterator[_Visitor]:
    while visitors and time.monotonic() < deadline:
        yield next(iter(visitors))


def _is_hello(message: dict[str, Any]) -> bool:
    return (
        isinstance(message.get("name"), str)
        and message["name"] != ""
        and isinstance(message.get("tasks"), dict)
        and isinstance(message.get("facts"), dict)
    )
