"""What tasks that meet say to each other, as lines of JSON.

- `{"hello": {"name", "tasks", "facts", "id"}}`: a task calls another one.
- `{"host": name, "leads": bool}`: the answer.
- `{"join": true}`: the caller takes part in the meeting that the other leads.
- `{"waiting": [name]}`, `{"moved": true}` and at last `{"go": [name]}`,
  `{"missing": text}` or `{"error": text}`: the leader to who has joined.
- `{"knock": {"name", "tasks"}}`: a run that goes on asks who waits.
- `{"waits": name}`: the answer.
- `{"admit": {"name", "tasks", "facts"}}`: the run lets it in.
- `{"admitted": true}` or `{"error": text}`: the answer.
"""

import socket
import time
from typing import Any

from trainer_plugins.control_plane.sockets import decode

# An answer to one question is never longer.
_MOST_BYTES = 4096


def is_hello(hello: Any) -> bool:
    """Whether a task says completely who it is."""
    return is_task(hello) and isinstance(hello.get("facts"), dict)


def is_task(task: Any) -> bool:
    """Whether a task says its name and its cluster."""
    return (
        isinstance(task, dict)
        and isinstance(task.get("name"), str)
        and task["name"] != ""
        and isinstance(task.get("tasks"), dict)
    )


def read_message(
    connection: socket.socket, *, seconds: float
) -> dict[str, Any] | None:
    """Reads one line and not a byte of what follows it.

    Args:
        connection: a blocking socket; its limit is changed.
        seconds: the limit.

    Returns:
        The message; `None` if the line is none.

    Raises:
        OSError: the line does not end in time.
    """
    deadline = time.monotonic() + seconds
    line = bytearray()
    while len(line) < _MOST_BYTES:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError("the line has ended")
        if byte == b"\n":
            return decode(bytes(line))
        line += byte
    return None
