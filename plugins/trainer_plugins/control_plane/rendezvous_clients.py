"""Searches for the leader of a rendezvous among other tasks."""

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from trainer_plugins.control_plane.rendezvous_messages import read_message
from trainer_plugins.control_plane.sockets import connect, encode, look_up

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
# When to try a task again that was absent or does not lead.
_RETRY_SECONDS = 0.1
# A name server, or another program at that address, must not be flooded.
_BACKOFF_SECONDS = 1.0


class LeaderSearch:
    """Connects to each of some tasks, one thread per task.

    The first one that leads is picked. The search then pauses until `resume`.

    Args:
        tasks: the name and address of each candidate.
        hello: this task's introduction, see `rendezvous_messages`.

    Attributes:
        wakeup: a socket that becomes readable when a task was picked.
    """

    def __init__(
        self, tasks: Mapping[str, str], hello: Mapping[str, Any]
    ) -> None:
        self._hello = encode({"hello": hello})
        self._notes: dict[str, str] = {}
        self._changed = threading.Condition()
        # Counts the calls of `resume`; a thread that finds another number than
        # before skips its pause.
        self._round = 0
        self._searching = True
        self._closed = False
        self._picked: tuple[str, socket.socket] | None = None
        # The owner waits in a selector, which takes sockets but no conditions.
        self.wakeup, self._wakeup_sender = socket.socketpair()
        for item in tasks.items():
            threading.Thread(
                target=self._run, args=item, name="leader-search", daemon=True
            ).start()

    def note(self, name: str) -> str:
        """Returns what was found at a task's address, for error messages."""
        return self._notes.get(name, "")

    def take(self) -> tuple[str, socket.socket] | None:
        """Returns the name of the picked task and the connection to it."""
        with self._changed:
            # Otherwise it would stay readable.
            self.wakeup.recv(1)
            picked, self._picked = self._picked, None
            return picked

    def resume(self) -> None:
        """Continues the search at once."""
        with self._changed:
            self._searching = True
            self._round += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the search; threads that wait for an answer end on their own."""
        with self._changed:
            self._closed = True
            self._searching = False
            self._changed.notify_all()
            if self._picked is not None:
                self._picked[1].close()
            self.wakeup.close()
            self._wakeup_sender.close()

    def _run(self, name: str, address: str) -> None:
        targets: list[tuple[Any, Any]] = []
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._searching or self._closed)
                if self._closed:
                    return
                this_round = self._round
            pause = _BACKOFF_SECONDS
            try:
                targets = targets or look_up(address, seconds=_CONNECT_SECONDS)
                pause = _RETRY_SECONDS
                connection = connect(targets, seconds=_CONNECT_SECONDS)
            except OSError as error:
                self._notes[name] = f" ({error.strerror or error})"
                # Refused means that the host is up but the task is not: retry
                # soon.
                if not isinstance(error, ConnectionRefusedError):
                    # The name may resolve to another machine by now.
                    targets, pause = [], _BACKOFF_SECONDS
            else:
                if not self._introduce(name, connection):
                    pause = _BACKOFF_SECONDS
            with self._changed:
                if self._round == this_round:
                    self._changed.wait(pause)

    def _introduce(self, name: str, connection: socket.socket) -> bool:
        """Picks the task if it leads; returns whether a task answers at all."""
        answer = None
        self._notes[name] = " (another program answers there)"
        with contextlib.suppress(OSError):
            connection.sendall(self._hello)
            answer = read_message(connection, seconds=_ANSWER_SECONDS)
        if answer is None or "host" not in answer:
            connection.close()
            return False
        self._notes[name] = ""
        with self._changed:
            # Another thread may have found a leader meanwhile, or the search
            # may be closed.
            if answer.get("leads") is True and self._searching:
                self._searching = False
                self._picked = (name, connection)
                self._wakeup_sender.send(b"!")
                return True
        connection.close()
        return True
