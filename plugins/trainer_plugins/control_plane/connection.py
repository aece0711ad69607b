"""One connection between two tasks: messages, and how long it is silent."""

import contextlib
import socket
import threading
import time
from typing import Any

from trainer_plugins.control_plane.sockets import (
    MOST_BYTES,
    decode,
    encode,
    fail_when_unanswered,
    split_lines,
)

# A peer that takes nothing off its connection is found out by its silence.
_SEND_SECONDS = 5.0
# A host that acknowledges nothing for so long has vanished. Its kernel
# answers however busy its processes are, so this may be short.
_VANISHED_SECONDS = 8.0
_BEAT = b"\n"


class Line:
    """A line to another task.

    Args:
        name: that task.
        connection: connected to it; owned by the line from now on.

    Attributes:
        name: see above.
        silent_seconds: how long nothing came, as its owner counts it.
    """

    def __init__(self, name: str, connection: socket.socket) -> None:
        connection.settimeout(_SEND_SECONDS)
        fail_when_unanswered(connection, seconds=_VANISHED_SECONDS)
        self.name = name
        self.silent_seconds = 0.0
        self._connection = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors; negative once it is closed."""
        return self._connection.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Takes what has come; to be called when something has.

        Raises:
            ConnectionError: the peer has ended.
            OSError: the peer's host does not answer.
        """
        received = self._connection.recv(65536)
        if not received or len(self._buffer) > MOST_BYTES:
            raise ConnectionResetError("the line has ended")
        self.silent_seconds = 0.0
        self._buffer += received
        messages = map(decode, split_lines(self._buffer))
        return [message for message in messages if message is not None]

    def beat(self) -> None:
        """Says that this task lives. That it cannot is found by reading."""
        # Whoever is sending says so, too.
        if not self._sending.acquire(blocking=False):
            return
        try:
            self._connection.send(_BEAT)
        except OSError:
            pass
        finally:
            self._sending.release()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; one that is gone is found by reading."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(encode(message))

    def finish(self, deadline: float) -> None:
        """Waits until the peer has read all that was sent, and closes.

        To close with unread beats would tell the kernel to take back what the
        peer has not read yet.

        Args:
            deadline: how long to wait, on the monotonic clock.
        """
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._connection.settimeout(left)
                if not self._connection.recv(65536):
                    break
        self.close()

    def close(self) -> None:
        """Closes it."""
        self._connection.close()
