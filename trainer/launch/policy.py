"""The restart policy of a single task, as pure functions.

A task that asks for it (exit code 75), or that was killed from outside, had a
transient failure: it is restarted as often as the limits allow. A failure of
its own may be transient too, but the same failure at the same step twice is a
defect.
"""

import dataclasses
import signal
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_START_AGAIN, EXIT_USER_ERROR
from trainer.launch.phrases import signal_name, times

# The second restart in a row waits 1 s, each later one twice as long.
_FIRST_DELAY = 1.0
_MOST_DELAY = 60.0
# A task that ran for this long before it ended resets the back-off.
HEALTHY_SECONDS = 60.0
# The slowest way to detect a lost peer takes half a minute.
_CASCADE_SECONDS = 60.0
# Signals that a program causes itself, as opposed to those sent from outside.
_CRASHES = frozenset(
    -number
    for number in (
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
    )
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """How often a task is restarted.

    Attributes:
        max_restarts: the most restarts within the window; 0 for none.
        window_seconds: how long a restart counts.
    """

    max_restarts: int = 3
    window_seconds: float = 3600.0


@dataclasses.dataclass(frozen=True)
class End:
    """How one process of a task ended, if it did not end well.

    Attributes:
        at: when it was detected, in seconds on a monotonic clock.
        ran: how many seconds it had been running.
        returncode: the exit code, or the negative number of the signal;
            `None` if it could not be started.
        error: what the program reported, such as `"ValueError: no"`; may be
            empty.
        progress: how far it had come, such as `"at step 40"`; empty if unknown.
        for_others: whether it left in order at the request of another task.
    """

    at: float
    ran: float
    returncode: int | None
    error: str = ""
    progress: str = ""
    for_others: bool = False

    @property
    def is_transient(self) -> bool:
        """Whether the cause may lie outside of the program."""
        # A process that could not be started may have lacked memory for a
        # moment.
        if self.returncode is None or self.returncode == EXIT_START_AGAIN:
            return True
        return self.returncode < 0 and not self.is_crash

    @property
    def is_crash(self) -> bool:
        """Whether the program crashed, such as by a segmentation fault."""
        return self.returncode in _CRASHES

    @property
    def failure(self) -> str:
        """The error and the progress, such as `"ValueError: no at step 40"`."""
        code = self.returncode or 0
        plain = signal_name(-code) if code < 0 else f"exit code {code}"
        return f"{self.error or plain} {self.progress}".rstrip()


class Restart(NamedTuple):
    """The task is restarted.

    Attributes:
        after: seconds to wait first.
    """

    after: float


class Stop(NamedTuple):
    """The task is not restarted.

    Attributes:
        why: a sentence; empty where the end explains itself.
        defect: whether it would only fail again.
    """

    why: str
    defect: bool


def decide(ends: Sequence[End], limits: Limits) -> Restart | Stop:
    """Decides what follows from a task's last end.

    Args:
        ends: all of the task's ends that count, including the last one,
            oldest first.
        limits: how often it may be restarted.
    """
    last = ends[-1]
    if last.returncode == EXIT_USER_ERROR:
        return Stop("", defect=True)
    # The message of the end itself is enough; no limit was exceeded.
    if not limits.max_restarts:
        return Stop("", defect=not last.is_transient)
    # Compared with all of them: an end of another kind, such as a SIGKILL, may
    # lie between the two.
    if not last.is_transient and any(_alike(last, end) for end in ends[:-1]):
        return Stop(
            f"The same {last.failure} twice: a defect, not bad luck.",
            defect=True,
        )
    # Every end but the last one was followed by a restart.
    restarts = len(recent(ends, limits)) - 1
    if restarts >= limits.max_restarts:
        return Stop(
            f"It was restarted {times(restarts)} within "
            f"{limits.window_seconds:g} s, as often as "
            f"--max_restarts={limits.max_restarts} allows.",
            defect=False,
        )
    return Restart(_delay(recent(ends, limits)))


def recent(ends: Sequence[End], limits: Limits) -> list[End]:
    """Returns the ends within the window before the last one, inclusive."""
    last = ends[-1]
    return [e for e in ends if last.at - e.at < limits.window_seconds]


def is_consequence(end: End, faults: Iterable[End]) -> bool:
    """Whether a task ended only because another task had ended before.

    Such an end does not count as a restart or as a defect. The other task's
    end counts, so restarts cannot go on forever.

    Args:
        end: the task's end.
        faults: the ends of other tasks that count.
    """
    # A task that ended with 75 is no cause: it lost a peer itself, or was
    # preempted together with this one. Nor is an end from before this process
    # was started.
    before = [
        fault
        for fault in faults
        if fault.returncode != EXIT_START_AGAIN
        and end.at - min(end.ran, _CASCADE_SECONDS) <= fault.at <= end.at
    ]
    if end.returncode == EXIT_START_AGAIN:
        return bool(before)
    # A lost peer may surface as any exception. But if several tasks fail by
    # themselves, neither need be the cause: they may share a defect.
    if end.is_transient or end.returncode == EXIT_USER_ERROR:
        return False
    return any(fault.is_transient for fault in before)


def is_symptom(end: End, fault: End) -> bool:
    """Whether a task left because of another task that ended after it.

    A failing task reports the failure at once, but may take a while to end. A
    frozen one is killed later, from outside.

    Args:
        end: an end of the first task.
        fault: the end of the other task.
    """
    return (
        end.returncode == EXIT_START_AGAIN != fault.returncode
        and fault.at - min(fault.ran, _CASCADE_SECONDS) <= end.at <= fault.at
    )


def _alike(one: End, other: End) -> bool:
    # Any amount of training may lie between two ends of unknown progress.
    same_progress = bool(one.progress) and one.progress == other.progress
    return (
        same_progress
        and not other.is_transient
        and one.failure == other.failure
    )


def _delay(ends: Sequence[End]) -> float:
    """Returns the back-off: 0 s after the first of a series of quick ends."""
    series = 1
    # An end continues the series of the one before it; the first has none to
    # continue.
    for end in reversed(ends[1:]):
        if end.ran >= HEALTHY_SECONDS:
            break
        series += 1
    if series == 1:
        return 0.0
    # The exponent is limited: in a long series the power would be too large for
    # a float.
    return min(_FIRST_DELAY * 2 ** min(series - 2, 10), _MOST_DELAY)
