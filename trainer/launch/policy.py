"""The restart policy of a group of tasks: pure, on the clock of its caller.

A failure is followed by a restart, as often as the limits allow. The same
failure at the same step twice is a bug, which a restart cannot repair. A
failure at a later step than those before it leads to a restart at once, and
counts for no limit: these are for runs that no longer make progress.
"""

import dataclasses
import itertools
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_START_AGAIN, EXIT_USER_ERROR

# The second restart in a row waits 1 s, each later one twice as long.
_FIRST_DELAY = 1.0
_MOST_DELAY = 60.0
# A task that ran for this long before it ended resets the back-off.
_HEALTHY_SECONDS = 60.0
# An end with 75 does not count. But a task that ends with 75 this often in a
# row, each time within ten minutes and before it trains, has lost its peers on
# other hosts for good.
_MOST_EARLY_ENDS = 30
_EARLY_SECONDS = 600.0
# How long a restart counts.
_WINDOW_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of restarts, and time-outs after which a process is ended.

    Attributes:
        max_restarts: the most restarts of a group within an hour.
        min_workers: how many workers are enough to continue without the others;
            `None` if all are needed.
        end_seconds: how long a task may take to end after a SIGTERM. More than
            `Preemption.grace_seconds` (25), so that a task which cannot save
            ends by itself with 75.
        settle_seconds: after a task has left with 75, how long it may take
            until the task that is the cause has ended, too.
        leave_seconds: how long a task that trains may outlive another one of
            its group. More than the `Watchdog` allows for a save (1800),
            because a chief finishes its current save before it ends.
        stopped_seconds: how long a task may be stopped (SIGSTOP). More than
            the `silence_seconds` (15) of both strategies, so that its peers
            name it and leave first.
        finish_seconds: how long a task may keep running once the run is done.
            An evaluator has limits of its own.
    """

    max_restarts: int = 3
    min_workers: int | None = None
    end_seconds: float = 30.0
    settle_seconds: float = 10.0
    leave_seconds: float = 2100.0
    stopped_seconds: float = 20.0
    finish_seconds: float = 60.0


@dataclasses.dataclass(frozen=True)
class End:
    """How one process of a task ended, if it did not end well.

    Attributes:
        task: the name of the task, such as `"worker 1"`.
        at: when it was detected, in seconds on the agent's clock.
        ran: how many seconds it had been running.
        returncode: the exit code, or the negative number of the signal.
        error: what the program reported, such as `"ValueError: no"`; empty
            if it left no report.
        step: the step it was at, or that it began at if it was killed; `None`
            if it did not train yet.
        saved: the step of the run's newest checkpoint by then; `None` if that
            is not known.
        is_further: whether the run got further than at all ends before it.
    """

    task: str
    at: float
    ran: float
    returncode: int
    error: str = ""
    step: int | None = None
    saved: int | None = None
    is_further: bool = False

    @property
    def requests_restart(self) -> bool:
        """Whether it left in order: preempted, or because of another task."""
        return self.returncode == EXIT_START_AGAIN

    @property
    def reached(self) -> int | None:
        """The step that the run has come to, as far as is known."""
        # A task of parameter servers has no step, and one that was killed has
        # reported only where it began.
        known = [n for n in (self.step, self.saved) if n is not None]
        return max(known, default=None)

    @property
    def exit_code(self) -> int:
        """The exit code that a shell would report."""
        # A negative number is a signal, for which a shell adds 128.
        return (
            self.returncode if self.returncode >= 0 else 128 - self.returncode
        )

    def is_early(self) -> bool:
        """Whether it left in order, and before it trained."""
        has_trained = self.step is not None or self.ran >= _EARLY_SECONDS
        return self.requests_restart and not has_trained

    def is_same(self, other: "End") -> bool:
        """Whether two ends are the same failure."""
        # Never a signal, which may come from outside. Without an error
        # message, two failures may have different causes.
        if self.requests_restart or not self.error or self.returncode <= 0:
            return False
        return (self.error, self.step) == (other.error, other.step)

    def __str__(self) -> str:
        """Returns a clause such as `"worker 1 was killed by SIGKILL"`."""
        code = self.returncode
        if code < 0:
            return f"{self.task} was killed by {signal_name(-code)}"
        verb = "requests a restart" if self.requests_restart else "failed"
        text = f"{self.task} {verb} (exit code {code})"
        where = "before the first step"
        if self.step is not None:
            where = f"at step {self.step}"
        return f"{text}: {self.error} {where}" if self.error else text


class Restart(NamedTuple):
    """The group is restarted after some seconds.

    `number` counts the restarts within the window; 0 if this one does not
    count.
    """

    after: float
    number: int


class Failure(Exception):
    """The group is not restarted.

    Args:
        end: the failure after which it is not restarted.
        why: an explanation; empty where the end explains itself.
        is_final: whether the group would fail without this task, too.
    """

    def __init__(
        self, end: End, why: str = "", *, is_final: bool = True
    ) -> None:
        super().__init__(f"{end}. {why}".rstrip())
        self.end = end
        self.is_final = is_final


class RestartPolicy:
    """Decides whether a group of tasks is restarted."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ends: list[End] = []

    def on_end(self, end: End) -> Restart:
        """Decides what follows from an end.

        Args:
            end: the first failure in the group since it was started; one with
                75 only if there is no other.

        Raises:
            Failure: there is no restart.
        """
        limit = self._limits.max_restarts
        # Compared with all of them: an end of another kind, such as a SIGKILL,
        # may lie between the two.
        is_repeated = any(map(end.is_same, self._ends))
        before = [e.reached for e in self._ends if e.reached is not None]
        reached = end.reached
        further = bool(before) and reached is not None and reached > max(before)
        self._ends.append(dataclasses.replace(end, is_further=further))
        if end.returncode == EXIT_USER_ERROR or not limit:
            raise Failure(end)
        if is_repeated:
            raise Failure(
                end,
                "The same failure happened twice at the same step: a bug.",
            )
        if _count_last(self._ends, End.is_early) > _MOST_EARLY_ENDS:
            raise Failure(
                end, f"It has not trained in {_MOST_EARLY_ENDS} restarts."
            )
        if further:
            return Restart(0.0, number=0)
        recent = [e for e in self._ends if end.at - e.at < _WINDOW_SECONDS]
        # The first one has no end before it that would begin a series.
        quick = _count_last(
            recent[1:], lambda e: e.ran < _HEALTHY_SECONDS and not e.is_further
        )
        # The exponent is limited: in a long series the power would be too
        # large for a float.
        delay = _FIRST_DELAY * 2.0 ** min(quick - 1, 10) if quick else 0.0
        delay = min(delay, _MOST_DELAY)
        if end.requests_restart:
            return Restart(delay, number=0)
        number = sum(not (e.requests_restart or e.is_further) for e in recent)
        if number <= limit:
            return Restart(delay, number)
        raise Failure(
            end,
            f"That is one restart more than --max_restarts={limit} allows an "
            "hour.",
            is_final=False,
        )

    def forget(self, task: str) -> None:
        """No longer counts the ends of a task that is left out."""
        self._ends = [end for end in self._ends if end.task != task]


def _count_last(ends: Sequence[End], fits: Callable[[End], bool]) -> int:
    """Returns how many ends, from the last one back, fit without a break."""
    return sum(1 for _ in itertools.takewhile(fits, reversed(ends)))


def signal_name(number: int) -> str:
    """Returns a name such as `"SIGTERM"`; the number if there is none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
