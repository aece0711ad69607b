"""Who has come to a meeting, and what the task that leads it decides."""

import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer_plugins.control_plane.rendezvous_errors import difference, missing

# When something is wrong, the others still have this long to come and hear it.
_LINGER_SECONDS = 5.0
_WARN_AFTER_SECONDS = 10.0
_WARN_EVERY_SECONDS = 30.0
# A run that ends so that an absent task can take part must be started again:
# it is given this many times longer to come.
_PATIENCE = 4.0


class Roster:
    """The tasks that are with the leader.

    Args:
        hello: the leader's own `name`, `tasks` (every task's address), `facts`
            and `id`.
        seconds: when to stop waiting.
        min_workers: how many tasks are enough; `None`: all of them.
        settle_seconds: if not all are there, for how long nobody new must
            have come.

    Attributes:
        deadline: when to stop waiting, on the monotonic clock.
        is_elastic: whether fewer than all can be enough.
    """

    def __init__(
        self,
        hello: Mapping[str, Any],
        *,
        seconds: float,
        min_workers: int | None,
        settle_seconds: float,
    ) -> None:
        self._own = hello
        self._tasks: dict[str, str] = hello["tasks"]
        self.deadline = time.monotonic() + seconds
        self.is_elastic = min_workers is not None
        self._seconds = seconds
        self._min_workers = min_workers
        self._settle_seconds = settle_seconds
        self._run_until = 0.0
        self._next_warning = time.monotonic() + _WARN_AFTER_SECONDS
        self.clear()

    def clear(self) -> None:
        """Begins anew, with the leader alone."""
        own = self._own["name"]
        self._hellos = {own: self._own}
        self._origins = {own: "the leader's own process"}
        self._problem: str | None = None
        self._problem_since = 0.0
        self._newest = time.monotonic()

    @property
    def absent(self) -> list[str]:
        """The tasks that are not there."""
        return [name for name in self._tasks if name not in self._hellos]

    def is_again(self, hello: Mapping[str, Any]) -> bool:
        """Whether this very process is known already."""
        known = self._hellos.get(hello["name"], {}).get("id")
        return known is not None and known == hello.get("id")

    def add(self, hello: Mapping[str, Any], origin: str) -> bool:
        """Notes who came, and what is wrong with it.

        Args:
            hello: what it said of itself.
            origin: where it came from, for messages.

        Returns:
            Whether it counts as there; else another process has its name.
        """
        name = hello["name"]
        if name in self._hellos and not self.is_again(hello):
            self._complain(
                f"Two processes say that they are {name}: {origin} and "
                f"{self._origins[name]}. Give each its own task index."
            )
            return False
        self._hellos[name] = hello
        self._origins[name] = origin
        self._newest = time.monotonic()
        if name not in self._tasks:
            self._complain(f"{name} is none of this cluster's tasks.")
        elif problem := difference(self._hellos):
            self._complain(problem)
        return True

    def remove(self, name: str) -> None:
        """Notes that a task has gone; it may come back."""
        # Who differs has been noted.
        if self._problem is None:
            self._hellos.pop(name, None)

    def expect_a_run(self) -> None:
        """Notes that a run goes on without this task, and will come."""
        seconds = _PATIENCE * self._settle_seconds
        self._run_until = time.monotonic() + seconds

    def verdict(self, *, run_goes_on: bool) -> dict[str, Any] | None:
        """What the leader says to all; `None` as long as it waits.

        Args:
            run_goes_on: whether other tasks of the cluster run meanwhile.
        """
        now, absent = time.monotonic(), self.absent
        over = now >= self.deadline
        lingered = now >= self._problem_since + _LINGER_SECONDS
        if self._problem and (over or lingered or not absent):
            return {"error": difference(self._hellos) or self._problem}
        if self._problem:
            return None
        settled = over or now >= self._newest + self._settle_seconds
        run_goes_on = run_goes_on or now < self._run_until
        if not absent or (settled and self._enough and not run_goes_on):
            return {"go": [n for n in self._tasks if n in self._hellos]}
        if over:
            return {"missing": self._too_few(absent)}
        self._warn(now, absent)
        return None

    @property
    def _enough(self) -> bool:
        least = self._min_workers
        return least is not None and len(self._hellos) >= least

    def _complain(self, problem: str) -> None:
        if self._problem is None:
            self._problem = problem
            self._problem_since = time.monotonic()

    def missing(self, names: list[str]) -> str:
        """Says which tasks did not come in time."""
        return missing(names, self._tasks, self._seconds)

    def _too_few(self, absent: list[str]) -> str:
        text = self.missing(absent)
        if self._min_workers is None:
            return text
        if self._enough:
            return f"{text}; a run goes on without this task"
        return f"{text}; min_workers is {self._min_workers}"

    def _warn(self, now: float, absent: list[str]) -> None:
        if now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_SECONDS
            logging.warning(
                "Waiting for %s.",
                ", ".join(f"{n} ({self._tasks[n]})" for n in absent),
            )
