"""How long the main thread may wait inside TensorFlow, or elsewhere."""

import contextlib
import time
from collections.abc import Iterator

from trainer_plugins.control_plane import timeouts


class WaitLimits:
    """Says when a process must be ended, as its main thread does not end."""

    def __init__(self, leave_seconds: float) -> None:
        self._leave_seconds = leave_seconds
        # Since when and until when the main thread waits.
        self._waiting: tuple[float, float] | None = None

    @contextlib.contextmanager
    def waiting(self, limit_seconds: float) -> Iterator[None]:
        """Marks that the caller waits for other tasks."""
        # A nested call must not remove the limit of the outer one.
        before, now = self._waiting, time.monotonic()
        self._waiting = (now, now + limit_seconds)
        try:
            yield
        finally:
            self._waiting = before

    def exceeded(self) -> float | None:
        """Returns the limit in seconds, if the caller has waited longer."""
        if self._waiting is None:
            return None
        since, until = self._waiting
        return until - since if time.monotonic() > until else None

    def must_end(self, ended_at: float) -> bool:
        """Whether the main thread has had its time after the run's end."""
        now = time.monotonic()
        if self._waiting is None:
            # Its peers cannot start again before it has ended.
            return now > ended_at + self._leave_seconds
        return now > max(self._waiting[0], ended_at) + timeouts.LEAVE_SECONDS
