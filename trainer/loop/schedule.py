"""When something is due: the epochs of a run, and periods that pass."""

import dataclasses
import time
from collections.abc import Callable

from trainer.values.periods import Period


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Where the epochs of a run begin and end, in steps.

    Attributes:
        steps: of an epoch; `None` if it is not known.
        begin: the step at which the first one begins.
        first: the number of that one.
    """

    steps: int | None
    begin: int = 0
    first: int = 0

    def number(self, step: int) -> int:
        """The number of the epoch that goes on after a step."""
        if not self.steps:
            return self.first
        return self.first + (step - self.begin) // self.steps

    def next_end(self, step: int) -> int | None:
        """The first step after `step` that ends an epoch."""
        return Period(steps=self.steps, begin=self.begin).next_step(step)


class Ticker:
    """Says when a period has passed since the last time.

    Args:
        period: in steps or in seconds.
        any_process: makes all processes of a run agree that time has passed;
            see `StrategyPlugin.any_process`.
    """

    def __init__(
        self, period: Period, any_process: Callable[[bool], bool]
    ) -> None:
        self.period = period
        self._any_process = any_process
        self._step = 0
        # Not the wall clock, which may be set during a run.
        self._time = time.monotonic()
        self._carried = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the period began."""
        return time.monotonic() - self._time

    def carry(self, elapsed: float) -> None:
        """Lets the next `start` count the seconds of an earlier attempt."""
        self._carried = elapsed

    def start(self, step: int) -> None:
        """Starts counting at a step, and now."""
        self._step = step
        self._time = time.monotonic() - self._carried
        # Once: a start after a rollback counts from zero.
        self._carried = 0.0

    def call_back(self) -> None:
        """Makes a period in seconds due again, as the event did not happen."""
        self._time -= self.period.seconds or 0.0

    def next_step(self, step: int) -> int | None:
        """See `Period.next_step`."""
        return self.period.next_step(step)

    def due(self, step: int) -> bool:
        """Whether the period has passed; starts the next one if so."""
        if self.period.seconds is not None:
            # Clocks differ between processes, and what is due may contain
            # collectives: all must decide alike.
            passed = self._any_process(self.elapsed >= self.period.seconds)
            if passed:
                self._time = time.monotonic()
            return passed
        # No agreement is needed: all processes are at the same step.
        passed = self.period.crossed(self._step, step)
        self._step = step
        return passed
