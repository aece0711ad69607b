"""Disconnects this process from a host that has vanished.

A host that loses its power or its network sends nothing: a call to it waits
until the kernel gives up the connection a quarter of an hour later, or
forever if there is nothing left to send. TensorFlow sets no limit of its own.
Once disconnected, such a call fails at once, as if the peer had been killed.
"""

import contextlib
import ipaddress
import os
import socket
import stat
from typing import Any

from trainer.plugin_api import split_address


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
        with contextlib.suppress(OSError):
            # The descriptor with which the folder was listed is closed by now,
            # and others may be.
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
