"""Times graph calls, and splits their time into phases of `goodput`."""

import math
from collections.abc import Callable

from absl import logging

from trainer.loop.goodput import Accounts

# Steps that wait for data for a larger share of their time are worth a
# sentence, once they have taken so many seconds.
_MUCH_WAITING, _ENOUGH_SECONDS = 0.1, 10.0


class Calls:
    """Accounts for the graph calls of one attempt.

    The first call includes the compilation that is left after tracing. How much
    that was is known once the second call has shown how long a step takes.

    Args:
        accounts: holds the calls' time as `"step"`.
        longest_seconds: see `too_long`.

    Attributes:
        too_long: whether a call of as many steps as the last one takes
            longer than `longest_seconds`, by the fastest one after the first.
    """

    def __init__(self, accounts: Accounts, *, longest_seconds: float) -> None:
        self.too_long = False
        self._accounts = accounts
        self._longest_seconds = longest_seconds
        self._count = 0
        self._first = (0, 0.0)
        self._fastest = math.inf
        self._before: tuple[float, Callable[[], float]] | None = None
        self._seconds = self._waited = 0.0

    def book(
        self, steps: int, *, seconds: float, waited: Callable[[], float]
    ) -> None:
        """Accounts for one call.

        Args:
            steps: how many it made.
            seconds: how long it took.
            waited: says how many of these it waited for data.
        """
        # One call later: fetching a value waits for its device, which by then
        # works on the next call.
        if self._before is not None:
            took, says = self._before
            wait = min(says(), took)
            self._accounts.move(wait, source="step", to="data_wait")
            self._seconds += took
            self._waited += wait
        self._before = (seconds, waited)
        self._count += 1
        if self._count == 1:
            self._first = (steps, seconds)
            return
        if self._count == 2:
            first_steps, first_seconds = self._first
            # What is more than the same number of steps took in the second
            # call.
            compiling = first_seconds - first_steps * seconds / steps
            self._accounts.move(compiling, source="step", to="compile")
        # The fastest one counts: a single delay does not make calls too long.
        self._fastest = min(self._fastest, seconds / steps)
        self.too_long = self._fastest * steps > self._longest_seconds

    def report_waiting(self) -> None:
        """Logs for how much of their time steps have waited for data."""
        if self._seconds < _ENOUGH_SECONDS:
            return
        share = self._waited / self._seconds
        if share <= _MUCH_WAITING:
            logging.info(
                "Steps have waited for data for %.0f%% of their time.",
                100 * share,
            )
        else:
            logging.warning(
                "Steps have waited for data for %.0f%% of their time. Arrays "
                "are read fastest, with --jit_compile=xla_stack above all; a "
                "dataset of your own should batch before it maps, map with "
                "num_parallel_calls=tf.data.AUTOTUNE, and cache what fits in "
                "memory.",
                100 * share,
            )
