"""A clock for time-outs: it stands still while this process does."""

import time
from collections.abc import Callable

# Between two looks; the launcher looks far more often.
_MOST_SECONDS = 2.0


class Clock:
    """Tells seconds in which this process was running.

    A launcher that is stopped together with its tasks, as by
    `scontrol suspend`, has not waited for them meanwhile. It has to be asked
    at least every second; of a longer gap only two seconds count.

    Args:
        monotonic: where the time comes from.
        sleep: lets a number of seconds pass.
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
        """The time; it only goes forward."""
        last, self._last = self._last, self._monotonic()
        self._now += min(self._last - last, _MOST_SECONDS)
        return self._now
