"""One connection between two tasks: messages, heartbeats, time in silence."""

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

# A send must not block on a frozen peer; its silence reveals it anyway.
_SEND_SECONDS = 5.0
# A host that acknowledges nothing for this long has vanished. Its kernel
# acknowledges however busy its processes are, so the limit may be short.
_VANISHED_SECONDS = 8.0
# An empty line, which is not a message: `read` leaves it out.
_BEAT = b"\n"


class Connection:
    """A connection to another task.

    Args:
        name: the other task's name.
        sock: a connected socket, owned by this object from now on.

    Attributes:
        name: see above.
        silent_seconds: how long nothing has come, as counted by the owner.
    """

    def __init__(self, name: str, sock: socket.socket) -> None:
        sock.settimeout(_SEND_SECONDS)
        fail_when_unanswered(sock, seconds=_VANISHED_SECONDS)
        self.name = name
        self.silent_seconds = 0.0
        self._socket = sock
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, for selectors; negative once closed."""
        return self._socket.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Reads the messages that have arrived; call it when readable.

        Raises:
            ConnectionError: the peer has closed the connection.
            OSError: the peer's host does not answer.
        """
        received = self._socket.recv(65536)
        # No task sends a longer line; another program may send without end.
        if not received or len(self._buffer) > MOST_BYTES:
            raise ConnectionResetError("the connection has ended")
        self.silent_seconds = 0.0
        self._buffer += received
        messages = map(decode, split_lines(self._buffer))
        return [message for message in messages if message is not None]

    def beat(self) -> None:
        """Sends a heartbeat; a failure shows up when reading."""
        # A message that is being sent proves as well that this task is alive,
        # and waiting for the lock would delay the other heartbeats.
        if not self._sending.acquire(blocking=False):
            return
        try:
            self._socket.send(_BEAT)
        except OSError:
            pass
        finally:
            self._sending.release()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; a failure shows up when reading."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(encode(message))

    def finish(self, deadline: float) -> None:
        """Waits until the peer has read everything, then closes.

        Closing a socket with unread input makes the kernel send a reset, and
        the peer may then lose what it has not read yet. Heartbeats keep
        coming in, so there nearly always is unread input.

        Args:
            deadline: when to stop waiting, on the monotonic clock.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(65536):
                    break
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
