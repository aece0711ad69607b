"""The leader of a meeting, as a task that has joined it sees it."""

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
    """The connection to it; joins the meeting.

    Args:
        name: the leader's name.
        connection: connected to it; owned by this object from now on.
        silence_seconds: it says every second who is missing; one that is
            silent for so long is gone.

    Attributes:
        waiting: the tasks that are missing, as it said last.
    """

    def __init__(
        self, name: str, connection: socket.socket, *, silence_seconds: float
    ) -> None:
        connection.setblocking(False)
        fail_when_unanswered(connection, seconds=silence_seconds)
        self._silence_seconds = silence_seconds
        # That it has gone is found by reading.
        with contextlib.suppress(OSError):
            connection.sendall(encode({"join": True}))
        self.waiting = [name]
        self._connection = connection
        self._heard = time.monotonic()
        self._buffer = bytearray()

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard of it for too long."""
        return time.monotonic() >= self._heard + self._silence_seconds

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def read(self) -> list[dict[str, Any]] | None:
        """What it says; `None` if it has gone or leads no longer."""
        try:
            received = self._connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._heard = time.monotonic()
        self._buffer += received
        if not received or len(self._buffer) > MOST_BYTES:
            return None
        messages = [decode(line) for line in split_lines(self._buffer)]
        known = [message for message in messages if message is not None]
        for message in known:
            if isinstance(message.get("waiting"), list):
                self.waiting = [str(name) for name in message["waiting"]]
        moved = len(known) < len(messages) or {"moved": True} in known
        return None if moved else known

    def close(self) -> None:
        """Leaves it."""
        self._connection.close()
