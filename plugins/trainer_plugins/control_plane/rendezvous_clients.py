"""Calls other tasks until one of them leads a meeting."""

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from trainer_plugins.control_plane.rendezvous_messages import read_message
from trainer_plugins.control_plane.sockets import connect, encode, look_up

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
# How long until a task is called again that was not there or does not lead.
_RETRY_SECONDS = 0.1
# A name server and another program must not be asked so often.
_POLITE_SECONDS = 1.0


class Callers:
    """Calls each of some tasks on a thread of its own.

    The first of them that leads is picked; then nobody is called any more
    until `resume`.

    Args:
        tasks: name and address of each.
        hello: what this task says of itself.

    Attributes:
        bell: can be read when a task was picked.
    """

    def __init__(
        self, tasks: Mapping[str, str], hello: Mapping[str, Any]
    ) -> None:
        self._hello = encode({"hello": hello})
        self._notes: dict[str, str] = {}
        self._changed = threading.Condition()
        self._round = 0
        self._calling = True
        self._over = False
        self._picked: tuple[str, socket.socket] | None = None
        self.bell, self._rope = socket.socketpair()
        for item in tasks.items():
            threading.Thread(
                target=self._run, args=item, name="caller", daemon=True
            ).start()

    def note(self, name: str) -> str:
        """What was found at a task's address, for messages."""
        return self._notes.get(name, "")

    def take(self) -> tuple[str, socket.socket] | None:
        """Name of, and connection to, the task that was picked."""
        with self._changed:
            self.bell.recv(1)
            picked, self._picked = self._picked, None
            return picked

    def resume(self) -> None:
        """Goes on calling, at once."""
        with self._changed:
            self._calling = True
            self._round += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Stops; threads that wait for an answer end by themselves."""
        with self._changed:
            self._over = True
            self._calling = False
            self._changed.notify_all()
            if self._picked is not None:
                self._picked[1].close()
            self.bell.close()
            self._rope.close()

    def _run(self, name: str, address: str) -> None:
        targets: list[tuple[Any, Any]] = []
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calling or self._over)
                if self._over:
                    return
                this_round = self._round
            pause = _POLITE_SECONDS
            try:
                targets = targets or look_up(address, seconds=_CONNECT_SECONDS)
                pause = _RETRY_SECONDS
                line = connect(targets, seconds=_CONNECT_SECONDS)
            except OSError as error:
                self._notes[name] = f" ({error.strerror or error})"
                if not isinstance(error, ConnectionRefusedError):
                    # The name may stand for another machine by now.
                    targets, pause = [], _POLITE_SECONDS
            else:
                if not self._ask(name, line):
                    pause = _POLITE_SECONDS
            with self._changed:
                if self._round == this_round:
                    self._changed.wait(pause)

    def _ask(self, name: str, line: socket.socket) -> bool:
        """Picks the task if it leads; whether a task answers at all."""
        answer = None
        self._notes[name] = " (another program answers there)"
        with contextlib.suppress(OSError):
            line.sendall(self._hello)
            answer = read_message(line, seconds=_ANSWER_SECONDS)
        if answer is None or "host" not in answer:
            line.close()
            return False
        self._notes[name] = ""
        with self._changed:
            if answer.get("leads") is True and self._calling:
                self._calling = False
                self._picked = (name, line)
                self._rope.send(b"!")
                return True
        line.close()
        return True
