"""Isolates the ports of a cluster on this machine from the network.

TensorFlow's servers listen on all addresses of a machine, with no way to
choose one, and anyone who can reach such a server may read and write files.
A network namespace (see `man 7 network_namespaces`) has its own loopback
interface and no other.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from trainer.errors import UserError

# From <linux/sched.h>.
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
# From <linux/sockios.h> and <linux/if.h>.
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
# The start of `struct ifreq`: a name of IFNAMSIZ bytes, then the flags.
_INTERFACE = "16sH14x"

ISOLATED = (
    "isolated: the tasks have a network of their own. No one else can reach "
    "their ports, and they can reach nothing outside: no gs://, no downloads, "
    "no metadata server."
)


def isolate() -> None:
    """Takes this process and its future children off the network, for good.

    Without the necessary rights, it also enters a user namespace, which
    grants them; the user and group stay the same.

    Raises:
        UserError: the kernel does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    try:
        try:
            # Root needs no user namespace. In one, only a single user is
            # mapped, and the files of all others appear to belong to nobody.
            _unshare(_NEW_NETWORK)
        except PermissionError:
            _unshare(_NEW_USER | _NEW_NETWORK)
            # The kernel lets an unprivileged process map its group only after
            # it has given up `setgroups`.
            _write("setgroups", "deny")
            _write("uid_map", f"{user} {user} 1")
            _write("gid_map", f"{group} {group} 1")
        _raise_loopback()
    except (OSError, AttributeError) as error:
        # AttributeError: a C library without `unshare`, outside Linux.
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--isolate: this system gives no network namespace ({reason}). "
            "Allow unprivileged user namespaces, run as root or in a "
            "container without a network, or leave --isolate out and keep "
            "the ports closed by a firewall."
        ) from None


def open_ports(ports: Sequence[int]) -> str:
    """Returns a message on the ports that a cluster opens to the network."""
    numbers = ", ".join(map(str, ports))
    return (
        f"ports open to the network during the run: {numbers}. Anyone who can "
        "reach one can read and write your files; --isolate closes them."
    )


def _unshare(flags: int) -> None:
    # `os.unshare` is new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        # "Invalid argument" would not explain it; see `man 2 unshare`.
        if number == errno.EINVAL and flags & _NEW_USER:
            raise OSError(number, "this process has several threads")
        raise OSError(number, os.strerror(number))


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)


def _raise_loopback() -> None:
    # In a new namespace even the loopback interface is down.
    with socket.socket() as handle:
        empty = struct.pack(_INTERFACE, b"lo", 0)
        found = fcntl.ioctl(handle, _GET_FLAGS, empty)
        name, flags = struct.unpack(_INTERFACE, found)
        up = struct.pack(_INTERFACE, name, flags | _UP)
        fcntl.ioctl(handle, _SET_FLAGS, up)
