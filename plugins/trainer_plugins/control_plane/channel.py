"""JSON lines with heartbeats over one TCP connection.

A host that loses its power or its network sends nothing: a call to it waits
until the kernel gives up the connection a quarter of an hour later, or forever
if there is nothing left to send. TensorFlow sets no limit of its own. So
heartbeats find such a host, and `disconnect_from` ends this process's other
connections to it; operations that wait for them then fail at once.
"""

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Coroutine
from typing import Any

from absl import logging

from trainer.plugin_api import split_address
from trainer_plugins.control_plane.options import (
    GOODBYE_SECONDS,
    HEARTBEAT_SECONDS,
)

# Messages are small, except for those that list all tasks. A host's name has
# at most 253 characters.
_MOST_BYTES = 1 << 17
_BYTES_PER_TASK = 300


def most_bytes(num_tasks: int) -> int:
    """Returns how long a line may be in a cluster of so many tasks."""
    return _MOST_BYTES + _BYTES_PER_TASK * num_tasks


class Channel:
    """One end of a connection; for the event loop's thread only.

    Args:
        reader: of the connection; its limit is that of a line.
        writer: of the connection.
        silence_seconds: without a heartbeat for this long the connection
            ends.

    Attributes:
        how: how the connection was lost, where that is known.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        silence_seconds: float,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._silent_seconds = 0.0
        self._silence_seconds = silence_seconds
        self.how = ""
        self._ended = asyncio.Event()
        # asyncio itself keeps no reference to a task.
        self._beating = asyncio.create_task(self._beat())

    @property
    def origin(self) -> str:
        """The IP address of the other end."""
        return str((self._writer.get_extra_info("peername") or "?")[0])

    @property
    def is_alive(self) -> bool:
        """Whether something has arrived within a few heartbeats."""
        return self._silent_seconds <= 3 * HEARTBEAT_SECONDS

    def send(self, **message: Any) -> None:
        """Sends a message; a broken connection is noticed when reading."""
        self._write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Returns the next message; `None` at the end, see `how`."""
        try:
            while line := await self._reader.readline():
                self._silent_seconds = 0.0
                if line.strip():
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
                    raise ValueError("not a message")
                # Lines that have arrived are read without a pause: thousands
                # of them would hold up everything else.
                await asyncio.sleep(0)
        # Closed or reset: the process has ended.
        except OSError:
            pass
        # ValueError: not JSON, or a line that is too long. RecursionError:
        # brackets that are nested too deeply.
        except (ValueError, RecursionError):
            self.how = self.how or "sent something other than messages"
        self._ended.set()
        return None

    def abort(self, how: str = "") -> None:
        """Closes at once; messages that were sent may be lost."""
        self.how = self.how or how
        self._beating.cancel()
        self._writer.transport.abort()

    async def finish(self) -> None:
        """Closes when the other end has read everything, or soon.

        Another coroutine must be receiving meanwhile: closing with unread input
        makes the kernel send a reset, and the peer may then lose data that it
        has not read yet.
        """
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._ended.wait()
        self._writer.close()

    async def _beat(self) -> None:
        """Sends heartbeats, and ends the connection if it is silent."""
        before = time.monotonic()
        while not self._writer.is_closing():
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._write(b"\n")
            now = time.monotonic()
            # A process that was suspended must not blame its peers: their
            # heartbeats may be waiting unread.
            self._silent_seconds += min(now - before, 2 * HEARTBEAT_SECONDS)
            before = now
            if self._silent_seconds > self._silence_seconds:
                self.abort(f"silent for {self._silent_seconds:.0f} s")

    def _write(self, line: bytes) -> None:
        # asyncio warns of writing to a connection that is lost.
        if not self._writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(line)


async def guarded(
    work: Coroutine[Any, Any, None], on_defect: Callable[[str], None]
) -> None:
    """Awaits work that no one waits for, and reports a defect of ours."""
    try:
        await work
    except Exception as error:
        logging.exception("The control plane failed.")
        on_defect(f"the control plane failed: {error!r}")


def disconnect_from(address: str) -> None:
    """Shuts down all of this process's connections to a task.

    This may take long while a name server is slow.
    """
    host, port = split_address(address)
    # UnicodeError: a name that IDNA cannot encode.
    with contextlib.suppress(OSError, UnicodeError):
        for *_, target in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            disconnect(str(target[0]), port)


def disconnect(host: str, port: int) -> int:
    """Shuts down and counts this process's connections to an IP address.

    That includes those of other libraries, such as gRPC inside TensorFlow.
    """
    target = (_plain(host), port)
    count = 0
    # Unlike /proc/self/fd, this exists on macOS, too.
    for name in os.listdir("/dev/fd"):
        # The descriptor with which the folder was listed is closed by now,
        # and others may be.
        with contextlib.suppress(OSError):
            count += _shut_down_if_to(target, int(name))
    return count


def _shut_down_if_to(target: tuple[Any, int], descriptor: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    # Its owner may close the descriptor at any time, and the number may then
    # stand for another file. A duplicate keeps referring to this socket.
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port = connection.getpeername()[:2]
        if (_plain(host), port) != target:
            return False
        # Closing would only affect the duplicate. A shutdown ends the
        # connection itself, and wakes the calls that wait for it.
        connection.shutdown(socket.SHUT_RDWR)
    return True


def _plain(host: str) -> Any:
    """Parses an address; gRPC writes IPv4 addresses as mapped IPv6 ones."""
    # A link-local address may end in a zone, such as %eth0.
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
