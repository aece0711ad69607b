"""Keeps the ports of a cluster on this machine away from the network.

TensorFlow's servers listen on all addresses of a machine, with no argument
for one of them, and whoever reaches such a server may read and write files.
A network namespace (see `man 7 network_namespaces`) has a loopback of its own
and nothing else.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from trainer.errors import UserError

# From <linux/sched.h>; os.unshare is new in Python 3.12.
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
# From <linux/sockios.h> and <linux/if.h>.
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_INTERFACE = "16sH14x"

ISOLATED = (
    "isolated: the tasks have a network of their own. Nobody else reaches "
    "their ports, and they reach nothing outside: no gs://, no downloads, no "
    "metadata server that announces a preemption."
)


def isolate() -> None:
    """Moves this process, and those that it will start, off the network.

    There is no way back. Without the rights for it, a user namespace in which
    the user stays who they are gives them.

    Raises:
        UserError: the kernel does not allow it.
    """
    try:
        _unshare()
        _raise_loopback()
    except (OSError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--isolate: this system gives no network namespace ({reason}). "
            "Allow unprivileged user namespaces, run as root or in a "
            "container without a network, or leave --isolate out and keep "
            "the ports closed by a firewall."
        ) from None


def open_ports(ports: Sequence[int]) -> str:
    """Says which ports of this machine a cluster opens to the network."""
    numbers = ", ".join(map(str, ports))
    return (
        f"ports open to the network while the run goes on: {numbers}. Whoever "
        "reaches one can read and write your files; --isolate closes them."
    )


def _unshare() -> None:
    try:
        _call_unshare(_NEW_NETWORK)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _call_unshare(_NEW_USER | _NEW_NETWORK)
        # A process may map its groups only if it gives up changing them.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _call_unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        if number == errno.EINVAL and flags & _NEW_USER:
            raise OSError(number, "this process has several threads")
        raise OSError(number, os.strerror(number))


def _raise_loopback() -> None:
    with contextlib.closing(socket.socket()) as handle:
        empty = struct.pack(_INTERFACE, b"lo", 0)
        found = fcntl.ioctl(handle, _GET_FLAGS, empty)
        name, flags = struct.unpack(_INTERFACE, found)
        up = struct.pack(_INTERFACE, name, flags | _UP)
        fcntl.ioctl(handle, _SET_FLAGS, up)
