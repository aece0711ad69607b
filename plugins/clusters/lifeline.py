"""A connection from each task to the first one, for as long as a run lasts.

TensorFlow's servers run for ever, and do not hear that their chief has ended.
Over this line it says goodbye; where the line breaks without one, it died.
The chief in turn hears of a task whose host has vanished without a word.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from plugins.clusters.cluster import Cluster
from plugins.clusters.sockets import (
    connect,
    decode,
    encode,
    keep_alive,
    listen_on,
    look_up,
)
from trainer import StartAgain

_RETRY_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_GOODBYE = {"goodbye": True}


class Lifeline:
    """The lines of one task; made by `open_lifeline`.

    Args:
        chief: the first task's name.
        lines: the first task has one to each other task, by name; another
            task has one, to the first.
    """

    def __init__(self, chief: str, lines: dict[str, socket.socket]) -> None:
        self._chief = chief
        self._lines = lines
        for line in lines.values():
            line.settimeout(None)
            keep_alive(line)

    @property
    def is_open(self) -> bool:
        """Whether the run goes on."""
        return bool(self._lines)

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """Tells of each task whose line breaks, until this one is closed.

        Args:
            on_lost: called on a thread of its own with the task's name and
                its IP address as seen from here.
        """
        selector = selectors.DefaultSelector()
        for name, line in self._lines.items():
            # A line that has broken does not know its peer any more.
            host = line.getpeername()[0]
            selector.register(line, selectors.EVENT_READ, (name, host))

        def run() -> None:
            with selector:
                while self.is_open:
                    for key, _ in selector.select(_WATCH_SECONDS):
                        selector.unregister(key.fileobj)
                        if self.is_open:
                            on_lost(*key.data)

        threading.Thread(target=run, name="lifeline", daemon=True).start()

    def say_goodbye(self) -> None:
        """Tells the other tasks that the run has ended well."""
        for line in self._lines.values():
            # One that is gone needs no goodbye.
            with contextlib.suppress(OSError):
                line.sendall(encode(_GOODBYE))
        self.close()

    def wait(self) -> None:
        """Returns when the first task says goodbye.

        Raises:
            StartAgain: it ended without doing so, or its host has vanished.
        """
        line = self._lines[self._chief]
        try:
            if decode(line.recv(4096).strip()) == _GOODBYE:
                self.close()
                return
        except ConnectionError:
            pass
        except OSError as error:
            raise StartAgain(
                f"{self._chief} does not answer any more: {error.strerror}"
            ) from None
        raise StartAgain(f"{self._chief} ended before the run did")

    def close(self) -> None:
        """Closes every line."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.close()


def open_lifeline(
    cluster: Cluster, *, jobs: Sequence[str], seconds: float = 60.0
) -> Lifeline:
    """Connects all tasks with the first; right after they have met.

    Uses the first task's own port, which is free again on return.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; the first task is as in `meet`.
        seconds: how long to wait for the others.

    Raises:
        StartAgain: a task did not come; it is named.
    """
    tasks = dict(cluster.tasks(*jobs))
    chief = next(iter(tasks))
    deadline = time.monotonic() + seconds
    if cluster.name == chief:
        others = set(tasks) - {chief}
        return Lifeline(chief, _accept(cluster, others, deadline))
    return Lifeline(chief, {chief: _reach(cluster, tasks[chief], deadline)})


def _accept(
    cluster: Cluster, others: set[str], deadline: float
) -> dict[str, socket.socket]:
    lines: dict[str, socket.socket] = {}
    with listen_on(cluster.address, owner=cluster.name, seconds=10) as door:
        while missing := others - set(lines):
            left = deadline - time.monotonic()
            if left <= 0:
                names = ", ".join(sorted(missing))
                raise StartAgain(f"no line to {names}")
            door.settimeout(left)
            try:
                line, _ = door.accept()
                line.settimeout(5.0)
                message = decode(line.recv(4096).strip()) or {}
            except OSError:
                continue
            name = message.get("name")
            if name in missing:
                line.sendall(encode({"name": cluster.name}))
                lines[name] = line
            else:
                line.close()
    return lines


def _reach(cluster: Cluster, address: str, deadline: float) -> socket.socket:
    targets = look_up(address, seconds=5.0)
    while time.monotonic() < deadline:
        try:
            line = connect(targets, seconds=5.0)
            line.settimeout(5.0)
            line.sendall(encode({"name": cluster.name}))
            # Only an answer tells the chief's door from another listener.
            if decode(line.recv(4096).strip()):
                return line
            line.close()
        except OSError:
            pass
        time.sleep(_RETRY_SECONDS)
    raise StartAgain(f"no line to the first task at {address}")
