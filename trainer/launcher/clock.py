"""A clock for time-outs: it stands still while this process does."""

import time

# Between two looks; the launcher looks far more often.
_MOST_SECONDS = 2.0


class Clock:
    """Tells seconds in which this process was running.

    A launcher that is stopped together with its tasks, as by
    `scontrol suspend`, has not waited for them meanwhile. It has to be asked
    at least every second; of a longer gap only two seconds count.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._now = self._last

    def __call__(self) -> float:
        """The time; it only goes forward."""
        last, self._last = self._last, time.monotonic()
        self._now += min(self._last - last, _MOST_SECONDS)
        return self._now
