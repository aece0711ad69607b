"""The connection of a task to the leader of a rendezvous."""

import contextlib
import socket
import time
from typing import Any

from trainer_plugins.control_plane.sockets import (
    MOST_BYTES,
    decode,
    encode,
    fail_when_unanswered,
    split_lines,
)


class Leader:
    """The leader, as seen by a task that joins it.

    Args:
        name: the leader's name.
        connection: a connected socket, owned by this object from now on.
        silence_seconds: a leader that is silent for this long is lost; it
            sends every second which tasks are missing.

    Attributes:
        waiting: the tasks that are missing, according to the leader.
    """

    def __init__(
        self, name: str, connection: socket.socket, *, silence_seconds: float
    ) -> None:
        connection.setblocking(False)
        fail_when_unanswered(connection, seconds=silence_seconds)
        self._silence_seconds = silence_seconds
        # A leader that is gone is noticed when reading.
        with contextlib.suppress(OSError):
            connection.sendall(encode({"join": True}))
        # Until its first message, this task waits for the leader itself.
        self.waiting = [name]
        self._connection = connection
        self._last_received = time.monotonic()
        self._buffer = bytearray()

    @property
    def is_silent(self) -> bool:
        """Whether the leader has been silent for too long."""
        return time.monotonic() >= self._last_received + self._silence_seconds

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._connection.fileno()

    def read(self) -> list[dict[str, Any]] | None:
        """Returns its messages; `None` if it is gone or no longer leads."""
        try:
            received = self._connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._last_received = time.monotonic()
        self._buffer += received
        if not received or len(self._buffer) > MOST_BYTES:
            return None
        messages = [decode(line) for line in split_lines(self._buffer)]
        known = [message for message in messages if message is not None]
        for message in known:
            if isinstance(message.get("waiting"), list):
                self.waiting = [str(name) for name in message["waiting"]]
        # A line that is not a message does not come from a leader.
        moved = len(known) < len(messages) or {"moved": True} in known
        return None if moved else known

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()
