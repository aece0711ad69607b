"""The members of a rendezvous, and the leader's decision on them."""

import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer_plugins.control_plane.rendezvous_errors import difference, missing

# After an error, the remaining tasks have this long to join and receive it too.
_LINGER_SECONDS = 5.0
_WARN_AFTER_SECONDS = 10.0
_WARN_EVERY_SECONDS = 30.0
# A run that ends so that an absent task can take part has to be restarted
# first. It is given this many times longer to join than other tasks.
_RESTART_FACTOR = 4.0


class Members:
    """The tasks that have joined the leader.

    Args:
        hello: the leader's own `name`, `tasks` (every task's address), `facts`
            and `id`.
        seconds: how long to wait.
        min_workers: how many tasks are enough; `None` requires all of them.
        settle_seconds: an incomplete cluster starts once no new task has
            joined for this long.

    Attributes:
        deadline: when to stop waiting, on the monotonic clock.
        is_elastic: whether fewer than all tasks can be enough.
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
        """Starts over with the leader alone."""
        own = self._own["name"]
        self._hellos = {own: self._own}
        self._origins = {own: "the leader's own process"}
        self._problem: str | None = None
        self._problem_since = 0.0
        self._newest = time.monotonic()

    @property
    def absent(self) -> list[str]:
        """The tasks that have not joined."""
        return [name for name in self._tasks if name not in self._hellos]

    def is_again(self, hello: Mapping[str, Any]) -> bool:
        """Whether this same process has joined before."""
        known = self._hellos.get(hello["name"], {}).get("id")
        return known is not None and known == hello.get("id")

    def add(self, hello: Mapping[str, Any], origin: str) -> bool:
        """Adds a task, and records any problem with it.

        Args:
            hello: its introduction.
            origin: where it connected from, for messages.

        Returns:
            Whether it counts as a member; if not, another process has the
            same name.
        """
        name = hello["name"]
        if name in self._hellos and not self.is_again(hello):
            self._report(
                f"Two processes say that they are {name}: {origin} and "
                f"{self._origins[name]}. Give each its own task index."
            )
            return False
        self._hellos[name] = hello
        self._origins[name] = origin
        self._newest = time.monotonic()
        if name not in self._tasks:
            self._report(f"{name} is not one of this cluster's tasks.")
        elif problem := difference(self._hellos):
            self._report(problem)
        return True

    def remove(self, name: str) -> None:
        """Removes a task that has disconnected; it may come back."""
        # A task that ends on the error it caused stays: the message for the
        # others is made from its facts.
        if self._problem is None:
            self._hellos.pop(name, None)

    def expect_a_run(self) -> None:
        """Notes that a run is active without this task, and will restart."""
        seconds = _RESTART_FACTOR * self._settle_seconds
        self._run_until = time.monotonic() + seconds

    def decide(self, *, run_goes_on: bool) -> dict[str, Any] | None:
        """Returns the leader's decision for all; `None` while it waits.

        Args:
            run_goes_on: whether other tasks of the cluster are running.
        """
        now, absent = time.monotonic(), self.absent
        over = now >= self.deadline
        lingered = now >= self._problem_since + _LINGER_SECONDS
        if self._problem and (over or lingered or not absent):
            # Compared again: more tasks may have joined since the problem was
            # found, and the message should name all that differ.
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

    def _report(self, problem: str) -> None:
        if self._problem is None:
            self._problem = problem
            self._problem_since = time.monotonic()

    def missing(self, names: list[str]) -> str:
        """Returns a message on the tasks that did not come in time."""
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
