"""Divides the steps of a host loop among workers of different speed.

A worker that is free takes a range of steps: a part of its share, and no more
than it can do by the time at which all are done. The next host loop waits for
all workers, so one that would finish last takes nothing.
"""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from absl import logging

# In a share, so that a worker that dies leaves only a part of its own.
_RANGES = 4
_POLL_SECONDS = 0.05
# Of the newest range, in the seconds that a worker takes for a step.
_WEIGHT = 0.2
# A worker that gets nothing is measured again, by one step, after this many
# times the seconds of that step.
_REST = 20.0
# A worker that is slower than most by this factor is named.
_SLOW = 4.0


class StepRanges:
    """The steps of one host loop after the other.

    Args:
        num_workers: how many workers share them.
        steps_per_closure: see `ParameterServer`.
        max_staleness: see `ParameterServer`.
        clock: gives the seconds.

    Attributes:
        num_workers: as given.
        results: those of a host loop, by the first step of each range.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        steps_per_closure: int | None = None,
        max_staleness: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.results: dict[int, Any] = {}
        self.num_workers = num_workers
        self._most = steps_per_closure
        self._bound = max_staleness
        self._clock = clock
        # Of each worker: for a step, and when it was measured.
        self._seconds: dict[int, float] = {}
        self._measured: dict[int, float] = {}
        self._named: set[int] = set()
        # When each should have nothing to do.
        self._free_at: dict[int, float] = {}
        # The range of each worker, and since when it has it.
        self._held: dict[int, tuple[range, float]] = {}
        # Those of a worker that was lost come last, and are taken first.
        self._left: list[range] = []
        # How many ranges were taken since all workers were idle.
        self._taken = 0
        self._num_steps = 0
        self._changed = threading.Condition()

    def begin(self, steps: range) -> None:
        """Begins a host loop."""
        self.results = {}
        self._left, self._num_steps = [steps], len(steps)
        self._free_at = dict.fromkeys(self._seconds, self._clock())

    @property
    def are_done(self) -> bool:
        """Whether all steps of the host loop are done."""
        return not (self._left or self._held)

    def take(self, worker: int) -> range | None:
        """Waits until there is something to do for a worker.

        Returns:
            Its range of steps; `None` when all are done.
        """
        with self._changed:
            while not self.are_done:
                if steps := self.take_now(worker):
                    return steps
                # Others may be done, lost, or later than expected.
                self._changed.wait(_POLL_SECONDS)
        return None

    def take_now(self, worker: int) -> range | None:
        """A range of steps for a worker; `None` if it should do nothing."""
        self._free_at[worker] = now = self._clock()
        count = self._count(worker, now) if self._left else 0
        if not count:
            return None
        source = self._left.pop()
        steps, rest = source[:count], source[count:]
        if rest:
            self._left.append(rest)
        self._held[worker] = steps, now
        self._taken += 1
        self._free_at[worker] += len(steps) * self._seconds.get(worker, 0.0)
        return steps

    def finish(self, worker: int, found: Any) -> None:
        """Records the results of a worker's range."""
        with self._changed:
            steps, since = self._let_go(worker)
            self.results[steps.start] = found
            now = self._clock()
            new = (now - since) / len(steps)
            # In its first range, a worker prepares.
            if worker in self._measured:
                old = self._seconds.get(worker, new)
                self._seconds[worker] = old + _WEIGHT * (new - old)
            self._measured[worker] = now

    def give_back(self, worker: int) -> None:
        """Lets the other workers take the range of a lost worker."""
        with self._changed:
            self._left.append(self._let_go(worker)[0])
            # It may return on another host.
            for known in (self._seconds, self._measured, self._free_at):
                known.pop(worker, None)

    def warn_of_slow(self) -> None:
        """Names each worker that is much slower than most, once."""
        for worker, seconds in self._seconds.items():
            usual = statistics.median_low(self._seconds.values())
            if seconds > _SLOW * usual and worker not in self._named:
                self._named.add(worker)
                logging.warning(
                    "worker %d is slow: it takes %.3g s for a step, and most "
                    "workers %.3g s. It gets only the steps that it can do in "
                    "time.",
                    *(worker, seconds, usual),
                )

    def _let_go(self, worker: int) -> tuple[range, float]:
        held = self._held.pop(worker)
        if not self._held:
            self._taken = 0
        self._changed.notify_all()
        return held

    def _count(self, worker: int, now: float) -> int:
        """How many steps a worker should begin now."""
        others = dict(self._seconds)
        own = others.pop(worker, None)
        rate = sum(1 / its for its in others.values())
        share = 1 / self.num_workers if own is None else 1 / (1 + own * rate)
        count = self._most or max(1, int(share * self._num_steps / _RANGES))
        count = min(count, len(self._left[-1]))
        if self._bound is not None:
            # Only these overlap a range: the next ones wait for all of them.
            beside = min(self.num_workers - 1, self._bound)
            if self._taken > beside:
                return 0
            count = min(count, self._bound // beside) if beside else count
        if own is None or not others:
            return count
        # When others are free. A worker that is late will be as late again.
        free = {one: abs(self._free_at[one] - now) for one in others}
        size = count
        if self._bound is None:
            begun = sum(free[one] / its for one, its in others.items())
            work = begun + sum(map(len, self._left))
            count, size = min(count, max(1, int(share * work))), 1
        without = min(free[one] + size * its for one, its in others.items())
        if self._bound is None:
            without = max(without, work / rate)
        if count * own <= without:
            return count
        return int(now - self._measured[worker] > _REST * own)
