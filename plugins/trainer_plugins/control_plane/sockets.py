"""TCP helpers; every call ends within a time limit."""

import errno
import ipaddress
import json
import socket
import threading
import time
from typing import Any

from trainer import UserError
from trainer.plugin_api import split_address

# No message of a rendezvous is longer, in bytes.
MOST_BYTES = 1 << 20
_RETRY_SECONDS = 0.2


def listen_on(address: str, *, owner: str, seconds: float) -> socket.socket:
    """Listens on a task's own port.

    Listens on all interfaces if the address is a name or is not one of this
    machine's. A name may resolve to another address here than elsewhere
    (Debian maps a machine's own name to 127.0.1.1), and an address may be
    translated on the way.

    Args:
        address: the task's `host:port`.
        owner: the task, for messages.
        seconds: how long to wait for the port, which an earlier attempt that
            is just ending may still hold.

    Returns:
        A listening socket, closed by the caller. TensorFlow may take the port
        as soon as it is closed.

    Raises:
        UserError: another program has the port, or it may not be used.
    """
    host, port = split_address(address)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _listen(host, port)
        except PermissionError:
            raise UserError(
                f"{owner}: this user may not listen on port {port}. Choose "
                "one above 1023."
            ) from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if time.monotonic() >= deadline:
                raise UserError(
                    f"{owner}: port {port} of this machine is in use by "
                    f"another program. End it, or choose another address "
                    f"than {address}."
                ) from None
        time.sleep(_RETRY_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    # It may resolve to ::1 first, while other tasks use 127.0.0.1.
    if host == "localhost":
        host = "127.0.0.1"
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return _listen_everywhere(port)
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        # It sets SO_REUSEADDR, so that connections in TIME_WAIT do not keep the
        # port. All tasks of a large cluster may connect at once, hence the
        # backlog.
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        # EAFNOSUPPORT: this machine has no IPv6.
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
    return _listen_everywhere(port)


def _listen_everywhere(port: int) -> socket.socket:
    # One socket for both versions: other tasks may use either.
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6,
            dualstack_ipv6=True,
            backlog=512,
        )
    return socket.create_server(("", port), backlog=512)


def look_up(address: str, *, seconds: float) -> list[tuple[Any, Any]]:
    """Resolves a host name; the system's resolver has no time limit.

    Args:
        address: `host:port`.
        seconds: the limit.

    Returns:
        Family and socket address of each address found, at least one.

    Raises:
        OSError: the name is unknown, or not resolved in time.
    """
    host, port = split_address(address)
    found: list[tuple[Any, Any]] = []
    errors: list[OSError] = []

    def resolve() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend((info[0], info[4]) for info in infos)
        except UnicodeError as error:
            # A name that IDNA cannot encode, such as one with an empty label.
            errors.append(OSError(str(error)))
        except OSError as error:
            errors.append(error)

    # `getaddrinfo` has no time-out, and cannot be interrupted.
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.1))
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"no answer for the name {host}")
    return found


def connect(targets: list[tuple[Any, Any]], *, seconds: float) -> socket.socket:
    """Connects to the first of several socket addresses that answers.

    Args:
        targets: what `look_up` returned.
        seconds: the limit for each of them.

    Raises:
        OSError: none answers.
    """
    failure = OSError("no address")
    for family, target in targets:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(seconds, 0.1))
            connection.connect(target)
            # If nothing listens on the port, the kernel may pick that very
            # port as this socket's own, and connect the socket to itself.
            if connection.getsockname() != connection.getpeername():
                return connection
        except OSError as error:
            failure = error
        connection.close()
    raise failure


def fail_when_unanswered(connection: socket.socket, *, seconds: float) -> None:
    """Makes a connection fail when its peer's host has vanished.

    By default the kernel retransmits for a quarter of an hour.

    Args:
        connection: one over which data is sent regularly.
        seconds: how long data may stay unacknowledged.
    """
    # Linux only.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000)
        )


def encode(message: dict[str, Any]) -> bytes:
    """Encodes a message as one line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """Decodes a line; `None` if it is not a message."""
    try:
        message = json.loads(line)
    # RecursionError: brackets that are nested too deeply.
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def split_lines(buffer: bytearray) -> list[bytes]:
    """Removes the complete lines from a buffer, and returns them."""
    *lines, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    return lines
