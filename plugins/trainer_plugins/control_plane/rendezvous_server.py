"""The connections that others make to a task that waits."""

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

from trainer_plugins.control_plane.sockets import (
    MOST_BYTES,
    decode,
    encode,
    fail_when_unanswered,
    split_lines,
)

# A visitor that has not said by then who it is is sent away.
_HELLO_SECONDS = 10.0
# A host that acknowledges nothing for so long has vanished.
_VANISHED_SECONDS = 10.0
_GOODBYE_SECONDS = 5.0
_MOST_STRANGERS = 64


class Visitor:
    """One connection, and what is known of who made it.

    Attributes:
        connection: it does not block.
        origin: the IP address it came from.
        hello: what the visitor said of itself, once it has.
        joined: the name under which it counts as there.
        runs: whether it is a run that goes on.
    """

    def __init__(self, connection: socket.socket, origin: str) -> None:
        self.connection = connection
        self.origin = origin
        self.hello: dict[str, Any] | None = None
        self.joined: str | None = None
        self.runs = False
        self.since = time.monotonic()
        self.buffer = bytearray()

    @property
    def is_stranger(self) -> bool:
        """Whether it has not said who it is."""
        return self.hello is None and not self.runs

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; that the visitor has gone is found by reading."""
        with contextlib.suppress(OSError):
            self.connection.sendall(encode(message))


class Visitors:
    """All of them; whoever makes trouble is sent away.

    Args:
        listener: listens on this task's own port.
        selector: what waits for them.
        expected: how many may come at once and be no strangers.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        *,
        expected: int,
    ) -> None:
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self)
        self._listener = listener
        self._selector = selector
        self._most_strangers = _MOST_STRANGERS + expected
        self._all: set[Visitor] = set()

    def __iter__(self) -> Iterator[Visitor]:
        return iter(list(self._all))

    def __contains__(self, visitor: Visitor) -> bool:
        return visitor in self._all

    def welcome(self) -> None:
        """Takes in who has come to the door."""
        with contextlib.suppress(OSError):
            connection, origin = self._listener.accept()
            connection.setblocking(False)
            # A verdict must not wait until what was said before is confirmed.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fail_when_unanswered(connection, seconds=_VANISHED_SECONDS)
            visitor = Visitor(connection, str(origin[0]))
            self._all.add(visitor)
            self._selector.register(connection, selectors.EVENT_READ, visitor)
        strangers = [v for v in self if v.is_stranger]
        if len(strangers) > self._most_strangers:
            self.drop(min(strangers, key=lambda v: v.since))

    def listen_to(self, visitor: Visitor) -> list[dict[str, Any]] | None:
        """What a visitor says; `None` if it has gone or speaks nonsense."""
        try:
            received = visitor.connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        visitor.buffer += received
        if not received or len(visitor.buffer) > MOST_BYTES:
            return None
        messages = [decode(line) for line in split_lines(visitor.buffer)]
        known = [message for message in messages if message is not None]
        return known if len(known) == len(messages) else None

    def tell(self, message: dict[str, Any]) -> None:
        """Says something to all that have joined."""
        for visitor in self:
            if visitor.joined is not None:
                visitor.send(message)

    def drop(self, visitor: Visitor) -> None:
        """Ends a connection."""
        self.release(visitor)
        visitor.connection.close()

    def release(self, visitor: Visitor) -> None:
        """Leaves a connection to whoever has use for it."""
        self._all.discard(visitor)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(visitor.connection)

    def send_strangers_away(self) -> None:
        """Ends connections over which nothing was said for long."""
        for visitor in self:
            waited = time.monotonic() - visitor.since
            if visitor.is_stranger and waited > _HELLO_SECONDS:
                self.drop(visitor)

    def see_off(self) -> None:
        """Lets the others close first: then no port waits on this side."""
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for visitor in self:
            if visitor.joined is not None:
                _wait_for_the_end(visitor.connection, deadline)
        self.close()

    def close(self) -> None:
        """Ends every connection; the door stays open."""
        for visitor in self:
            self.drop(visitor)


def _wait_for_the_end(connection: socket.socket, deadline: float) -> None:
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(65536):
                return
