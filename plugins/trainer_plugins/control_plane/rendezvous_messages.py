"""The messages of a rendezvous, as lines of JSON.

- `{"hello": {"name", "tasks", "facts", "id"}}`: a task's introduction.
- `{"host": name, "leads": bool}`: the answer.
- `{"join": true}`: the caller joins the rendezvous that the other task leads.
- `{"waiting": [name]}`, `{"moved": true}` and finally `{"go": [name]}`,
  `{"missing": text}` or `{"error": text}`: the leader to its members.
- `{"knock": {"name", "tasks"}}`: a running job asks which task waits here.
- `{"waits": name}`: the answer.
- `{"admit": {"name", "tasks", "facts"}}`: the job accepts the task.
- `{"admitted": true}` or `{"error": text}`: the answer.
"""

import socket
import time
from typing import Any

from trainer_plugins.control_plane.sockets import decode

# No answer to a single question is longer.
_MOST_BYTES = 4096


def is_hello(hello: Any) -> bool:
    """Whether this is a complete introduction."""
    return is_task(hello) and isinstance(hello.get("facts"), dict)


def is_task(task: Any) -> bool:
    """Whether this has at least a task's name and its cluster."""
    return (
        isinstance(task, dict)
        and isinstance(task.get("name"), str)
        and task["name"] != ""
        and isinstance(task.get("tasks"), dict)
    )


def read_message(
    connection: socket.socket, *, seconds: float
) -> dict[str, Any] | None:
    """Reads one message and not a byte of what follows it.

    Args:
        connection: a blocking socket; its time-out is changed.
        seconds: the limit.

    Returns:
        The message; `None` if the line is not one.

    Raises:
        OSError: the message is not complete in time.
    """
    # Byte by byte: whatever follows belongs to the connection's next owner,
    # which has a buffer of its own.
    deadline = time.monotonic() + seconds
    line = bytearray()
    while len(line) < _MOST_BYTES:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError("the connection has ended")
        if byte == b"\n":
            return decode(bytes(line))
        line += byte
    return None
