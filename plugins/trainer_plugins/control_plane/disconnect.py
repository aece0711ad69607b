"""Ends the connections to a host that has vanished.

A host that loses its power or its network says nothing: a call to it waits
until the kernel gives the connection up, a quarter of an hour later, or for
ever if nothing is left to send. TensorFlow sets no limit of its own. A call
whose connection is ended here fails at once, as if the peer had been killed.
"""

import contextlib
import ipaddress
import os
import socket
import stat
from typing import Any

from trainer_plugins.control_plane.sockets import look_up

_LOOK_UP_SECONDS = 2.0


def hang_up_on(address: str) -> None:
    """Ends all connections of this process to a task.

    Args:
        address: the task's `host:port`.
    """
    with contextlib.suppress(OSError):
        for _, target in look_up(address, seconds=_LOOK_UP_SECONDS):
            hang_up(target[0], target[1])


def hang_up(host: str, port: int) -> int:
    """Ends all connections of this process to an address, whoever made them.

    Args:
        host: an IP address.
        port: the peer's port.

    Returns:
        How many there were.
    """
    target = (_plain(host), port)
    count = 0
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            count += _end_if_to(target, int(name))
    return count


def _end_if_to(target: tuple[Any, int], descriptor: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    # The owner may close its descriptor meanwhile; a copy stays what it is.
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port = connection.getpeername()[:2]
        if (_plain(host), port) != target:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    return True


def _plain(host: str) -> Any:
    """An address; gRPC writes those of version 4 as ones of version 6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
