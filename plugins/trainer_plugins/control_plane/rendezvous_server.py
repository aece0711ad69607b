"""Incoming connections of a task that waits in a rendezvous."""

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

# A connection without an introduction is dropped after this long.
_HELLO_SECONDS = 10.0
# A host that acknowledges nothing for this long has vanished.
_VANISHED_SECONDS = 10.0
_GOODBYE_SECONDS = 5.0
# In addition to the tasks, which may all connect before the first of them has
# introduced itself.
_MOST_UNKNOWN = 64


class IncomingConnection:
    """One incoming connection, and what is known about its peer.

    Attributes:
        socket: the connected socket; it does not block.
        origin: the peer's IP address.
        hello: the peer's introduction, once it has sent one.
        joined: the name under which it counts as a member.
        runs: whether the peer is a running job.
    """

    def __init__(self, sock: socket.socket, origin: str) -> None:
        self.socket = sock
        self.origin = origin
        self.hello: dict[str, Any] | None = None
        self.joined: str | None = None
        self.runs = False
        self.since = time.monotonic()
        self.buffer = bytearray()

    @property
    def is_unknown(self) -> bool:
        """Whether the peer has not introduced itself."""
        return self.hello is None and not self.runs

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; a peer that is gone is noticed when reading."""
        with contextlib.suppress(OSError):
            self.socket.sendall(encode(message))


class IncomingConnections:
    """All incoming connections; invalid ones are dropped.

    Args:
        listener: listens on this task's own port.
        selector: waits for events; the connections are registered with it.
        expected: how many tasks may connect at the same time.
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
        self._most_unknown = _MOST_UNKNOWN + expected
        self._all: set[IncomingConnection] = set()

    def __iter__(self) -> Iterator[IncomingConnection]:
        return iter(list(self._all))

    def __contains__(self, connection: IncomingConnection) -> bool:
        return connection in self._all

    def accept(self) -> None:
        """Accepts a connection."""
        with contextlib.suppress(OSError):
            sock, origin = self._listener.accept()
            sock.setblocking(False)
            # With Nagle's algorithm, the decision would wait until the
            # previous message is acknowledged.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fail_when_unanswered(sock, seconds=_VANISHED_SECONDS)
            connection = IncomingConnection(sock, str(origin[0]))
            self._all.add(connection)
            self._selector.register(sock, selectors.EVENT_READ, connection)
        # A port scanner must not use up this process's descriptors.
        unknown = [c for c in self if c.is_unknown]
        if len(unknown) > self._most_unknown:
            self.drop(min(unknown, key=lambda c: c.since))

    def read(
        self, connection: IncomingConnection
    ) -> list[dict[str, Any]] | None:
        """Returns messages; `None` if the peer is gone or sends garbage."""
        try:
            received = connection.socket.recv(65536)
        except BlockingIOError:
            # A socket may be reported as readable although it is not; see
            # `man 2 select`.
            return []
        except OSError:
            return None
        connection.buffer += received
        if not received or len(connection.buffer) > MOST_BYTES:
            return None
        messages = [decode(line) for line in split_lines(connection.buffer)]
        known = [message for message in messages if message is not None]
        return known if len(known) == len(messages) else None

    def broadcast(self, message: dict[str, Any]) -> None:
        """Sends a message to all members."""
        for connection in self:
            if connection.joined is not None:
                connection.send(message)

    def drop(self, connection: IncomingConnection) -> None:
        """Closes a connection."""
        self.release(connection)
        connection.socket.close()

    def release(self, connection: IncomingConnection) -> None:
        """Hands a connection over to the caller."""
        self._all.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)

    def drop_unknown(self) -> None:
        """Closes connections that have sent no introduction for too long."""
        for connection in self:
            waited = time.monotonic() - connection.since
            if connection.is_unknown and waited > _HELLO_SECONDS:
                self.drop(connection)

    def close_last(self) -> None:
        """Lets the members close first, then closes all connections."""
        # The side that closes first keeps its port in TIME_WAIT, and
        # TensorFlow is about to listen on this task's port.
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for connection in self:
            if connection.joined is not None:
                _wait_for_the_end(connection.socket, deadline)
        self.close()

    def close(self) -> None:
        """Closes every connection; the listener stays open."""
        for connection in self:
            self.drop(connection)


def _wait_for_the_end(connection: socket.socket, deadline: float) -> None:
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(65536):
                return
