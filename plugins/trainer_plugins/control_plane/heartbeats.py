"""Sends heartbeats over several connections and reads them, on a thread."""

import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

from trainer_plugins.control_plane.connection import Connection

_BEAT_SECONDS = 1.0


class Connections:
    """The connections of one task; all callbacks run on its thread.

    Args:
        silence_seconds: a connection that is silent for this long is lost.
        on_message: called with a connection and each message it receives.
        on_lost: called with a connection that was lost, already closed, and
            how it was lost where that is known.
        each_beat: called each second with the monotonic time.

    Attributes:
        silence_seconds: see above; may be changed.
    """

    def __init__(
        self,
        *,
        silence_seconds: float,
        on_message: Callable[[Connection, dict[str, Any]], None],
        on_lost: Callable[[Connection, str], None],
        each_beat: Callable[[float], None],
    ) -> None:
        self.silence_seconds = silence_seconds
        self._is_open = True
        self._on_message = on_message
        self._on_lost = on_lost
        self._each_beat = each_beat
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(
            target=self._run, name="heartbeats", daemon=True
        ).start()

    def current(self) -> list[Connection]:
        """Returns the connections that are neither lost nor dropped."""
        with self._lock:
            return list(self._connections.values())

    def add(self, connection: Connection) -> None:
        """Adds a connection; closes it if this object is closed already."""
        with self._lock:
            if self._is_open:
                self._connections[connection.name] = connection
                self._selector.register(
                    connection, selectors.EVENT_READ, connection
                )
                return
        connection.close()

    def drop(self, connection: Connection) -> bool:
        """Closes a connection; call this on the thread only.

        Returns:
            Whether it was still in use.
        """
        with self._lock:
            in_use = self._connections.get(connection.name) is connection
            if in_use:
                del self._connections[connection.name]
                self._selector.unregister(connection)
        if in_use:
            connection.close()
        return in_use

    def close(self) -> list[Connection]:
        """Stops the thread; the caller closes the connections returned."""
        with self._lock:
            self._is_open = False
            connections, self._connections = self._connections, {}
        return list(connections.values())

    def _run(self) -> None:
        beaten = time.monotonic()
        while self._is_open:
            left = beaten + _BEAT_SECONDS - time.monotonic()
            for key, _ in self._selector.select(max(left, 0.0)):
                self._read(key.data)
            now = time.monotonic()
            if now >= beaten + _BEAT_SECONDS:
                self._beat(now - beaten)
                self._each_beat(now)
                beaten = now
        # Not in `close`, which may be called while this thread is in `select`.
        self._selector.close()

    def _read(self, connection: Connection) -> None:
        try:
            messages = connection.read()
        # Closed or reset: the process has ended. Any other error, such as
        # ETIMEDOUT, means that its host has vanished.
        except ConnectionError:
            self._lose(connection, "")
        except OSError:
            self._lose(connection, "does not answer")
        else:
            for message in messages:
                self._on_message(connection, message)

    def _beat(self, elapsed: float) -> None:
        # A task that was suspended itself must not blame its peers: their
        # heartbeats may be waiting unread. So one round never counts for more
        # than two beats of silence.
        elapsed = min(elapsed, 2 * _BEAT_SECONDS)
        for connection in self.current():
            connection.beat()
            connection.silent_seconds += elapsed
            if connection.silent_seconds > self.silence_seconds:
                self._lose(
                    connection, f"silent for {connection.silent_seconds:.0f} s"
                )

    def _lose(self, connection: Connection, how: str) -> None:
        # A connection that this task closed itself is not a loss.
        if self.drop(connection):
            self._on_lost(connection, how)
