"""Where the tasks and their coordinator listen."""

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from trainer import StartAgain, UserError
from trainer.plugin_api import read_number, split_address
from trainer_plugins.control_plane.options import ANSWER_SECONDS

# All tasks of a large cluster may connect at once.
BACKLOG = 512
COORDINATOR_PORT = "TRAINER_COORDINATOR_PORT"
# The default is this far above the first task's port: other tasks of the same
# machine usually have the ports in between. An even number, because Linux
# gives odd ports to those who want any port to listen on, and takes even ones
# for outgoing connections.
_DISTANCE = 30
# An earlier attempt that is just ending may still hold a port.
_PORT_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_T = TypeVar("_T")


def coordinator_port(tasks: Mapping[str, str]) -> int:
    """Returns the port on which the coordinator of these tasks listens.

    It is `TRAINER_COORDINATOR_PORT`, or else the first task's port plus 30,
    or the next one that no task has. All tasks compute the same one.

    Args:
        tasks: the address of every task, the first one's first.

    Raises:
        UserError: the variable is not a port, or is a task's port.
    """
    taken = {split_address(address)[1]: name for name, address in tasks.items()}
    if os.environ.get(COORDINATOR_PORT, "").strip():
        port = read_number(os.environ, COORDINATOR_PORT, least=1, most=65535)
        if port in taken:
            raise UserError(
                f"{COORDINATOR_PORT}={port} is the port of {taken[port]}. The "
                "coordinator needs one of its own."
            )
        return port
    first = next(iter(taken))
    above = range(first + _DISTANCE, 65536)
    below = range(first - 1, 0, -1)
    return next(p for p in itertools.chain(above, below) if p not in taken)


def listen(tasks: Mapping[str, str]) -> socket.socket:
    """Returns a socket on which the coordinator, in the first task, listens.

    Raises:
        UserError: another program has the port, or it may not be used.
    """
    owner, address = next(iter(tasks.items()))
    host, port = split_address(address)[0], coordinator_port(tasks)
    return _claim(
        port,
        lambda: _server(connectable(host), port),
        owner=owner,
        advice=f"set {COORDINATOR_PORT} to a free one",
    )


def _server(host: str, port: int) -> socket.socket:
    """Listens on an address of this machine, and else on all interfaces.

    A name may resolve to another address here than elsewhere (Debian maps a
    machine's own name to 127.0.1.1), and an address may be translated on the
    way.
    """
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(host).version
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        try:
            return socket.create_server(
                (host, port), family=family, backlog=BACKLOG
            )
        except OSError as error:
            # EAFNOSUPPORT: this machine has no IPv6.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    # One socket for both versions: other tasks may use either.
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=socket.AF_INET6 if dual else socket.AF_INET,
        dualstack_ipv6=dual,
        backlog=BACKLOG,
    )


def connectable(host: str) -> str:
    """Returns a host as tasks connect to it: `localhost` may mean ::1 first."""
    return "127.0.0.1" if host == "localhost" else host


@contextlib.contextmanager
def reserved_port(address: str, *, owner: str) -> Iterator[None]:
    """Reserves a task's own port until TensorFlow takes it over.

    It is bound without a listener, on all interfaces, as TensorFlow binds it.

    Raises:
        UserError: another program has the port, or it may not be used.
    """
    _, port = split_address(address)
    dual = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as holder:
        # TensorFlow sets it, too, and can therefore listen all the same.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _claim(
            port,
            lambda: holder.bind(("", port)),
            owner=owner,
            advice=f"choose an address other than {address}",
        )
        yield


def _claim(port: int, bind: Callable[[], _T], *, owner: str, advice: str) -> _T:
    """Binds a port, which an earlier attempt may hold for some seconds.

    Args:
        port: the port, for messages.
        bind: binds it.
        owner: the task, for messages.
        advice: what to do if another program has it, for messages.

    Raises:
        UserError: another program has the port, or it may not be used.
    """
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            return bind()
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            if not is_taken or time.monotonic() >= deadline:
                raise UserError(
                    f"{owner} cannot listen on port {port} of this machine: "
                    f"{error.strerror}. End the program that uses it, or "
                    f"{advice}."
                ) from None
        time.sleep(_RETRY_SECONDS)


async def check_names(tasks: Mapping[str, str], seconds: float) -> None:
    """Resolves the names of all hosts, as TensorFlow will.

    TensorFlow waits without a message for one that this machine does not
    know.

    Raises:
        StartAgain: a name is not known; the message says which.
    """
    deadline = time.monotonic() + seconds
    left = dict(tasks)
    while left:
        name, address = next(iter(left.items()))
        resolved = asyncio.get_running_loop().getaddrinfo(
            split_address(address)[0], None
        )
        try:
            await asyncio.wait_for(resolved, ANSWER_SECONDS)
            del left[name]
        # UnicodeError: a name that IDNA cannot encode, as with an empty label.
        except (OSError, UnicodeError) as error:
            # A name server may fail temporarily, or learn a name late.
            if time.monotonic() >= deadline:
                reason = getattr(error, "strerror", None) or repr(error)
                raise StartAgain(
                    f"this machine cannot resolve the host of {name} "
                    f"({address}): {reason}"
                ) from None
            await asyncio.sleep(_RETRY_SECONDS)
