"""Accounts for the wall time of a run, over all its attempts."""

import contextlib
import itertools
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trainer.errors import UserError
from trainer.runtime.import_tensorflow import STARTED

# In the order of a run. "other" is the time of callbacks and of the loop;
# "lost" is the time between a checkpoint and the start that resumed it, but for
# what passed after an attempt that has ended by itself: that is "paused".
PHASES = (
    "start_up",
    "compile",
    "data_wait",
    "step",
    "evaluation",
    "checkpoint",
    "other",
    "lost",
    "paused",
)
_TRAINING = ("data_wait", "step", "evaluation", "checkpoint", "other")
# How many accounts this process has made. A counter of itertools is atomic.
_made = itertools.count()


class Doing(NamedTuple):
    """The activity of a thread.

    Attributes:
        phase: one of `PHASES`.
        since: when it began, as `time.monotonic` says.
    """

    phase: str
    since: float


class Accounts:
    """Splits the wall time of a run into phases, in seconds.

    Each moment is counted in one phase, so that the phases' sum is the time
    from the first attempt's start to now. Time between a checkpoint and the
    start that resumed it, downtime included, is `"lost"`; see `pause_since`.

    The first accounts of a process begin when it first imported this package,
    so that its imports are part of `"start_up"`. Later ones, and those of an
    interactive process, begin when they are made.
    """

    def __init__(self) -> None:
        # Marks what this object has saved itself; see `load_state`.
        self._id = uuid.uuid4().hex
        self._seconds = dict.fromkeys(PHASES, 0.0)
        # Wall time for what another process will read, a monotonic clock for
        # what is measured here.
        is_first = next(_made) == 0 and not hasattr(sys, "ps1")
        before = time.monotonic() - STARTED if is_first else 0.0
        self._started_at = time.time() - before
        # When what was restored was saved.
        self._saved_at = 0.0
        self._last_change = time.monotonic() - before
        self._base = "start_up"
        self._stack: list[Doing] = []
        self._aside: dict[int, Doing] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Books the time while it is open; a phase inside books its own."""
        self._book()
        self._stack.append(Doing(name, self._last_change))
        try:
            yield
        finally:
            self._book()
            self._stack.pop()

    @contextlib.contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Notes what another thread does meanwhile; books no time."""
        thread = threading.get_ident()
        self._aside[thread] = Doing(name, time.monotonic())
        try:
            yield
        finally:
            del self._aside[thread]

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """While it is open, time outside any phase is not `"start_up"`.

        Raises:
            UserError: it is open.
        """
        if self._base == "other":
            raise UserError(
                "A callback calls train or fit of its own Trainer. Train "
                "another one in it, or this one after the run."
            )
        self._book()
        self._base = "other"
        try:
            yield
        finally:
            self._book()
            self._base = "start_up"

    @property
    def training_seconds(self) -> float:
        """How long all attempts have trained, evaluated and saved.

        Without start-up and compilation, and without what was lost.
        """
        self._book()
        return sum(self._seconds[name] for name in _TRAINING)

    def move(self, seconds: float, *, source: str, to: str) -> None:
        """Books time that turned out to be another phase's."""
        self._book()
        # Estimates, as of compilation, may exceed what was booked.
        seconds = min(max(seconds, 0.0), self._seconds[source])
        self._seconds[source] -= seconds
        self._seconds[to] += seconds

    def doing(self) -> list[Doing]:
        """The current activities of all threads, inner phases last."""
        # A new list, because the watchdog reads it on its own thread.
        return [*self._stack, *self._aside.values()]

    def summary(self) -> dict[str, float]:
        """Seconds by phase, their `"total"`, and the `"goodput"`.

        The goodput is the share of the total, without what was paused, that
        was spent in steps.
        """
        self._book()
        total = sum(self._seconds.values())
        running = total - self._seconds["paused"]
        return {
            **self._seconds,
            "total": total,
            "goodput": self._seconds["step"] / running if running else 0.0,
        }

    def state(self, *, over: bool) -> dict[str, Any]:
        """Returns the state for a checkpoint.

        Args:
            over: whether the run has ended. Time until it is
                extended, if ever, is not lost.
        """
        self._book()
        saved_at = None if over else time.time()
        return {
            "id": self._id,
            "seconds": dict(self._seconds),
            "saved_at": saved_at,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Adds the time of earlier attempts."""
        # When one trainer trains twice, what it has saved is counted already.
        if state["id"] == self._id:
            return
        for name, seconds in state["seconds"].items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        if state["saved_at"] is not None:
            self._saved_at = state["saved_at"]
            # The clocks of two hosts may differ a little: no negative time.
            gap = self._started_at - self._saved_at
            self._seconds["lost"] += max(gap, 0.0)

    def pause_since(self, end: float) -> None:
        """Books as paused what passed from the end of the last attempt on.

        Args:
            end: when it ended by itself, in whole seconds of `time.time`.
        """
        # It has mostly saved last, in the second in which it ended.
        begin = max(end, self._saved_at)
        self.move(self._started_at - begin, source="lost", to="paused")

    def lose_since(self, state: Mapping[str, Any]) -> None:
        """Books as lost what was spent after this run's state was saved.

        Start-up and compilation are not repeated, and so are not lost.
        """
        self._book()
        for name in _TRAINING:
            spent = self._seconds[name] - state["seconds"].get(name, 0.0)
            self.move(spent, source=name, to="lost")

    def _book(self) -> None:
        now = time.monotonic()
        name = self._stack[-1].phase if self._stack else self._base
        self._seconds[name] += now - self._last_change
        self._last_change = now
