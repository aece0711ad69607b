"""Whether a task that ended is started again: the policy, without acting.

A task that asks for it (exit code 75), or that somebody killed, had bad luck:
it is started again, as often as the limits allow. A failure of its own may
be bad luck too, but the same failure at the same place twice is a defect.
"""

import dataclasses
import signal
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_START_AGAIN, EXIT_USER_ERROR
from trainer.launch.messages import signal_name, times

# The second restart in a row waits 1 s, each later one twice as long.
_FIRST_DELAY = 1.0
_MOST_DELAY = 60.0
# A task that ran for so long before it ended starts a new row.
WELL_SECONDS = 60.0
# The slowest way to notice a lost peer takes half a minute.
_CASCADE_SECONDS = 60.0
# What the program has done itself, not whoever ends processes from outside.
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
    """How often a task is started again.

    Attributes:
        max_restarts: at most so often within the window; 0 for never.
        window_seconds: how long a restart counts.
    """

    max_restarts: int = 3
    window_seconds: float = 3600.0


@dataclasses.dataclass(frozen=True)
class End:
    """One end of a task that did not end well.

    Attributes:
        at: when it was noticed, in seconds of a clock that only goes forward.
        ran: how many seconds it had been running.
        returncode: the exit code, or the negative number of the signal;
            `None` if it could not even be started.
        error: what the program said of it, such as `"ValueError: no"`; may
            be empty.
        place: how far it had come, such as `"at step 40"`; empty if unknown.
        for_others: whether it left in order because others asked the run to.
    """

    at: float
    ran: float
    returncode: int | None
    error: str = ""
    place: str = ""
    for_others: bool = False

    @property
    def is_bad_luck(self) -> bool:
        """Whether the program itself need not be at fault."""
        if self.returncode is None or self.returncode == EXIT_START_AGAIN:
            return True
        return self.returncode < 0 and not self.is_crash

    @property
    def is_crash(self) -> bool:
        """Whether the program did what the system ends processes for."""
        return self.returncode in _CRASHES

    @property
    def failure(self) -> str:
        """What went wrong and where, such as `"ValueError: no at step 40"`."""
        code = self.returncode or 0
        plain = signal_name(-code) if code < 0 else f"exit code {code}"
        return f"{self.error or plain} {self.place}".rstrip()


class Restart(NamedTuple):
    """The task is started again.

    Attributes:
        after: in so many seconds.
    """

    after: float


class Stop(NamedTuple):
    """The task is not started again.

    Attributes:
        why: a sentence; empty where the end itself says it all.
        defect: whether it would fail again.
    """

    why: str
    defect: bool


def decide(ends: Sequence[End], limits: Limits) -> Restart | Stop:
    """Judges a task's last end.

    Args:
        ends: all of the task's ends that count, the last one included,
            oldest first.
        limits: how often it may be started again.
    """
    last = ends[-1]
    if last.returncode == EXIT_USER_ERROR:
        return Stop("", defect=True)
    if not limits.max_restarts:
        return Stop("", defect=not last.is_bad_luck)
    if not last.is_bad_luck and any(_alike(last, end) for end in ends[:-1]):
        return Stop(
            f"The same {last.failure} twice: a defect, not bad luck.",
            defect=True,
        )
    # Every end but the last one was followed by a restart.
    restarts = len(recent(ends, limits)) - 1
    if restarts >= limits.max_restarts:
        return Stop(
            f"It was started again {times(restarts)} within "
            f"{limits.window_seconds:g} s, as often as "
            f"--max_restarts={limits.max_restarts} allows.",
            defect=False,
        )
    return Restart(_delay(recent(ends, limits)))


def recent(ends: Sequence[End], limits: Limits) -> list[End]:
    """The ends within the window before the last one, which is included."""
    last = ends[-1]
    return [e for e in ends if last.at - e.at < limits.window_seconds]


def is_consequence(end: End, faults: Iterable[End]) -> bool:
    """Whether a task ended only because another one had ended before.

    Such an end does not count against a task, nor for a defect. There are no
    more of them than faults, so nothing goes on for ever.

    Args:
        end: the task's end.
        faults: the ends of other tasks that count.
    """
    before = [
        fault
        for fault in faults
        if fault.returncode != EXIT_START_AGAIN
        and end.at - min(end.ran, _CASCADE_SECONDS) <= fault.at <= end.at
    ]
    if end.returncode == EXIT_START_AGAIN:
        return bool(before)
    # A lost peer may look like a failure. But where several tasks fail, one
    # need not be the cause of the other: the defect may be in all of them.
    if end.is_bad_luck or end.returncode == EXIT_USER_ERROR:
        return False
    return any(fault.is_bad_luck for fault in before)


def is_symptom(end: End, fault: End) -> bool:
    """Whether a task left because of another one that ended after it.

    A task that fails says so at once, and then takes its time to end. One
    that is frozen is ended by somebody else, later.

    Args:
        end: an end of the first task.
        fault: the other one's.
    """
    return (
        end.returncode == EXIT_START_AGAIN != fault.returncode
        and fault.at - min(fault.ran, _CASCADE_SECONDS) <= end.at <= fault.at
    )


def _alike(one: End, other: End) -> bool:
    # Nobody knows how much training lies between two unknown places.
    at_one_place = bool(one.place) and one.place == other.place
    return (
        at_one_place and not other.is_bad_luck and one.failure == other.failure
    )


def _delay(ends: Sequence[End]) -> float:
    """Seconds to wait: none after the first of a row of quick ends."""
    row = 1
    for end in reversed(ends[1:]):
        if end.ran >= WELL_SECONDS:
            break
        row += 1
    if row == 1:
        return 0.0
    return min(_FIRST_DELAY * 2 ** min(row - 2, 10), _MOST_DELAY)
