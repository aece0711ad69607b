"""When something is due: the epochs of a run, and periods that pass."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import keras

from trainer.data.batches import Batches, Resume
from trainer.errors import UserError
from trainer.values.periods import Period, in_epochs, parse_length


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
        """The number of the epoch that continues after a step."""
        if not self.steps:
            return self.first
        return self.first + (step - self.begin) // self.steps

    def next_end(self, step: int) -> int | None:
        """The first step after `step` that ends an epoch."""
        return Period(steps=self.steps, begin=self.begin).next_step(step)


class FitEpochs(NamedTuple):
    """The epochs of a call of `Trainer.fit`.

    Attributes:
        epochs: the number of the epoch before which it ends.
        initial_epoch: the number of the first one.
        steps_per_epoch: `None` for one pass over the data.
    """

    epochs: int
    initial_epoch: int = 0
    steps_per_epoch: int | None = None

    def length(self, batches: Batches, *, begin: int) -> tuple[Epochs, int]:
        """The epochs from a step on, and the step at which the last one ends.

        Raises:
            UserError: it is not known how long an epoch is.
        """
        steps = self.steps_per_epoch or batches.steps_per_epoch
        # As `fit` does: it may be set to try a program out.
        most = keras.config.max_steps_per_epoch()
        if most is not None:
            steps = min(steps or most, most)
        if steps and batches.resume is Resume.SEEK:
            # As in Keras, whose epochs end where arrays do.
            steps = min(steps, batches.steps_per_epoch or steps)
        if steps is None:
            raise UserError(
                "The data does not say how many batches an epoch has: pass "
                "steps_per_epoch."
            )
        epochs = Epochs(steps, begin=begin, first=self.initial_epoch)
        return epochs, begin + (self.epochs - self.initial_epoch) * steps


def length_of(batches: Batches, steps: int | str) -> tuple[Epochs, int]:
    """The epochs of a run of so many steps, and the step at which it ends."""
    # A dataset of unknown length is counted, but no further than needed.
    if not in_epochs(steps):
        batches.learn_length(at_most=parse_length(steps, name="steps"))
    epochs = Epochs(batches.steps_per_epoch)
    return epochs, parse_length(
        steps, name="train_steps", steps_per_epoch=epochs.steps
    )


def fresh_pass(batches: Batches, *, begin: int) -> int:
    """How many batches to pass over, so that a new pass begins at a step."""
    # What is shuffled here gets an order that no earlier pass had. A dataset's
    # order is its own, and to pass over batches takes time.
    if batches.resume is Resume.SEEK and batches.steps_per_epoch:
        return -begin % batches.steps_per_epoch
    return -begin


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

    def next_step(self, step: int) -> int | None:
        """See `Period.next_step`."""
        return self.period.next_step(step)

    def is_due(self, step: int) -> bool:
        """Whether the period has passed since it was started."""
        if self.period.seconds is None:
            # No agreement is needed: all processes are at the same step.
            return self.period.crossed(self._step, step)
        # Clocks differ between processes, and what is due may contain
        # collectives: all must decide alike.
        return self._any_process(self.elapsed >= self.period.seconds)

    def due(self, step: int) -> bool:
        """Whether the period has passed; starts the next one if so."""
        passed = self.is_due(step)
        if passed:
            self.start(step)
        return passed
