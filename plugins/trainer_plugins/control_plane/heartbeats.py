"""Beats on several lines and listens to them, on a thread."""

import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

from trainer_plugins.control_plane.connection import Line

_BEAT_SECONDS = 1.0


class Lines:
    """The lines of one task. The functions given are called on the thread.

    Args:
        silence_seconds: a line that is silent for so long is lost.
        on_message: called with a line and each message that it brings.
        on_lost: called with a line that is lost, and what is known of how;
            it is closed already.
        each_beat: called each second with the time on the monotonic clock.

    Attributes:
        silence_seconds: see above; may be changed.
    """

    def __init__(
        self,
        *,
        silence_seconds: float,
        on_message: Callable[[Line, dict[str, Any]], None],
        on_lost: Callable[[Line, str], None],
        each_beat: Callable[[float], None],
    ) -> None:
        self.silence_seconds = silence_seconds
        self._is_open = True
        self._on_message = on_message
        self._on_lost = on_lost
        self._each_beat = each_beat
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, name="lifeline", daemon=True).start()

    def current(self) -> list[Line]:
        """Those that are neither lost nor dropped."""
        with self._lock:
            return list(self._lines.values())

    def add(self, line: Line) -> None:
        """Adds a line; closes it if it comes too late."""
        with self._lock:
            if self._is_open:
                self._lines[line.name] = line
                self._selector.register(line, selectors.EVENT_READ, line)
                return
        line.close()

    def drop(self, line: Line) -> bool:
        """Closes a line; on the thread only.

        Returns:
            Whether it was still in use.
        """
        with self._lock:
            in_use = self._lines.get(line.name) is line
            if in_use:
                del self._lines[line.name]
                self._selector.unregister(line)
        if in_use:
            line.close()
        return in_use

    def close(self) -> list[Line]:
        """Stops the thread; what it used is the caller's to close."""
        with self._lock:
            self._is_open = False
            lines, self._lines = self._lines, {}
        return list(lines.values())

    def _run(self) -> None:
        beaten = time.monotonic()
        while self._is_open:
            left = beaten + _BEAT_SECONDS - time.monotonic()
            for key, _ in self._selector.select(max(left, 0.0)):
                self._listen(key.data)
            now = time.monotonic()
            if now >= beaten + _BEAT_SECONDS:
                self._beat(now - beaten)
                self._each_beat(now)
                beaten = now
        self._selector.close()

    def _listen(self, line: Line) -> None:
        try:
            messages = line.read()
        except ConnectionError:
            self._lose(line, "")
        except OSError:
            self._lose(line, "does not answer")
        else:
            for message in messages:
                self._on_message(line, message)

    def _beat(self, elapsed: float) -> None:
        # A task that was itself held up must not blame the others for it:
        # their beats may not have been read yet.
        elapsed = min(elapsed, 2 * _BEAT_SECONDS)
        for line in self.current():
            line.beat()
            line.silent_seconds += elapsed
            if line.silent_seconds > self.silence_seconds:
                self._lose(line, f"silent for {line.silent_seconds:.0f} s")

    def _lose(self, line: Line, how: str) -> None:
        # One that this task has ended itself is not lost.
        if self.drop(line):
            self._on_lost(line, how)
