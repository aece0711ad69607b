"""JSON lines with heartbeats over one TCP connection."""

import asyncio
import contextlib
import json
import socket
from typing import Any

from trainer_plugins.control_plane import timeouts

# Messages are small, except for those that list all tasks. A host's name has
# at most 253 characters.
_MOST_BYTES = 1 << 17
_BYTES_PER_TASK = 300


def most_bytes(num_tasks: int) -> int:
    """Returns how long a line may be in a cluster of so many tasks."""
    return _MOST_BYTES + _BYTES_PER_TASK * num_tasks


class Stream:
    """One end of a connection; for the event loop's thread only.

    Args:
        reader: of the connection; its limit is that of a line.
        writer: of the connection.

    Attributes:
        how: how the connection was lost, where that is known.
        ended: set when `receive` has returned `None`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader, self._writer = reader, writer
        self._silent_seconds = 0.0
        self.how = ""
        self.ended = asyncio.Event()
        connection = writer.get_extra_info("socket")
        # By default Linux retransmits for a quarter of an hour.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(
                socket.IPPROTO_TCP,
                socket.TCP_USER_TIMEOUT,
                int(timeouts.UNACKNOWLEDGED_SECONDS * 1000),
            )

    @property
    def origin(self) -> str:
        """The IP address of the other end."""
        return str((self._writer.get_extra_info("peername") or "?")[0])

    def send(self, **message: Any) -> None:
        """Sends a message; a broken connection is noticed when reading."""
        self._write(json.dumps(message).encode() + b"\n")

    async def receive(self, *, beats: bool = True) -> dict[str, Any] | None:
        """Returns the next message; `None` at the end, see `how`.

        Args:
            beats: whether heartbeats may come before it. Lines that have
                arrived are read without a pause, so thousands of them would
                hold up everything else.
        """
        try:
            while line := await self._reader.readline():
                self._silent_seconds = 0.0
                if line.strip() or not beats:
                    return _decode(line)
        # Closed or reset: the process has ended. Any other error, such as
        # ETIMEDOUT, means that its host has vanished.
        except ConnectionError:
            pass
        except OSError:
            self.how = self.how or "does not answer"
        # ValueError: not JSON, or a line that is too long. RecursionError:
        # brackets that are nested too deeply.
        except (ValueError, RecursionError):
            self.how = self.how or "sent something other than messages"
        self.ended.set()
        return None

    def beat(self, elapsed: float, silence_seconds: float) -> None:
        """Sends a heartbeat, and ends a connection that is silent too long.

        Args:
            elapsed: seconds since the last call.
            silence_seconds: the limit.
        """
        self._write(b"\n")
        # A process that was suspended must not blame its peers: their
        # heartbeats may be waiting unread.
        self._silent_seconds += min(elapsed, 2 * timeouts.HEARTBEAT_SECONDS)
        if self._silent_seconds > silence_seconds:
            self.abort(f"silent for {self._silent_seconds:.0f} s")

    @property
    def is_alive(self) -> bool:
        """Whether something has arrived within a few heartbeats."""
        return self._silent_seconds <= 3 * timeouts.HEARTBEAT_SECONDS

    def abort(self, how: str = "") -> None:
        """Closes at once; what was sent may be lost."""
        self.how = self.how or how
        self._writer.transport.abort()

    async def finish(self) -> None:
        """Closes when the other end has read everything, or soon.

        Another coroutine must be receiving meanwhile: closing with unread
        input makes the kernel send a reset, and the peer may then lose what
        it has not read yet.
        """
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(timeouts.GOODBYE_SECONDS):
                await self.ended.wait()
        self._writer.close()

    def _write(self, line: bytes) -> None:
        # asyncio warns of writing to a connection that is lost.
        if not self._writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(line)


def _decode(line: bytes) -> dict[str, Any]:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message
