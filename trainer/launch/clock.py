"""A clock for time-outs that stops while this process is stopped."""

import time
from collections.abc import Callable

# The longest gap that counts; the launcher reads the clock far more often.
_MOST_SECONDS = 2.0


class Clock:
    """Counts the seconds during which this process was running.

    A launcher that is stopped together with its tasks, as by
    `scontrol suspend`, has not waited for them in that time. The clock must
    be read at least every second; only two seconds of a longer gap count.

    Args:
        monotonic: the source of time.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monotonic = monotonic
        self.sleep = sleep
        self._last = monotonic()
        self._now = self._last

    def __call__(self) -> float:
        """Returns the time, which never goes back."""
        last, self._last = self._last, self._monotonic()
        self._now += min(self._last - last, _MOST_SECONDS)
        return self._now
