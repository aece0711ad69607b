"""Decides which tasks take part in a run, and when it starts."""

import dataclasses
import time
from collections.abc import Collection, Iterable
from typing import Any

from absl import logging

from trainer_plugins.control_plane import timeouts
from trainer_plugins.control_plane.difference import (
    difference,
    label,
    listed,
    missing,
)
from trainer_plugins.control_plane.hello import Hello
from trainer_plugins.control_plane.options import Options


class Admission:
    """The tasks that have come so far, and what is wrong with them.

    Args:
        own: the introduction of the task in which the coordinator runs.
        options: see `Options`.
    """

    def __init__(self, own: Hello, options: Options) -> None:
        self._own = own
        self._options = options
        self._hellos: dict[str, Hello] = {}
        self._present: set[str] = set()
        now = time.monotonic()
        self._deadline = now + options.start_seconds
        self._next_warning = now + timeouts.WARN_AFTER_SECONDS
        self._newest = now
        self._expected: frozenset[str] = frozenset()
        self._expected_until = 0.0
        self._problem: str | None = None
        self._problem_since = 0.0

    @property
    def absent(self) -> list[str]:
        """The tasks that have not come."""
        return [name for name in self._own.tasks if name not in self._present]

    def is_another(self, hello: Hello) -> bool:
        """Whether the task of that name is another process so far."""
        known = self._hellos.get(hello.name)
        return known is not None and known.id != hello.id

    def note(self, problem: str | None) -> None:
        """Notes a mistake; the first one ends the start for all."""
        if self._problem is None and problem is not None:
            self._problem, self._problem_since = problem, time.monotonic()

    def add(self, hello: Hello) -> None:
        """Adds a task, and notes what is wrong with it."""
        if hello.tasks == self._own.tasks:
            # One copy for all.
            hello = dataclasses.replace(hello, tasks=self._own.tasks)
        self._hellos[hello.name] = hello
        self._present.add(hello.name)
        self._newest = time.monotonic()
        if hello.expected and not self._expected:
            self._expected = frozenset(hello.expected)
            self._expected_until = self._newest + timeouts.RESTART_SECONDS
        if hello.name not in self._own.tasks:
            self.note(f"{hello.name} is not one of this cluster's tasks.")
        else:
            self.note(self.why_not(hello))

    def remove(self, name: str) -> None:
        """Removes a task that has disconnected; it may come back."""
        self._present.discard(name)
        # After a mistake it stays: the message is made from its facts.
        if self._problem is None:
            self._hellos.pop(name, None)

    def why_not(self, hello: Hello) -> str | None:
        """Returns how a task differs from the coordinator's, if it does."""
        return self._difference([hello])

    def decide(self) -> dict[str, Any] | None:
        """Returns the message for all that have come, once it is certain."""
        now, absent = time.monotonic(), self.absent
        over = now >= self._deadline
        if self._problem is not None:
            lingered = now - self._problem_since > timeouts.LINGER_SECONDS
            if not (over or lingered or not absent):
                return None
            # Compared again: more tasks may have come by now, and the message
            # should name all that differ.
            found = self._difference(self._hellos.values())
            return {"refuse": found or self._problem}
        if not absent or self._may_start_without(absent, now, over):
            return {"start": [n for n in self._own.tasks if n not in absent]}
        if over:
            text = missing(absent, self._own.tasks, self._options.start_seconds)
            if self._options.is_elastic:
                text = f"{text}; min_workers is {self._options.min_workers}"
            return {"missing": text}
        if now >= self._next_warning:
            self._next_warning = now + timeouts.WARN_EVERY_SECONDS
            labels = [label(name, self._own.tasks) for name in absent]
            logging.warning("Waiting for %s.", listed(labels))
        return None

    def _may_start_without(
        self, absent: Collection[str], now: float, over: bool
    ) -> bool:
        least = self._options.min_workers
        settled = over or now >= self._newest + self._options.settle_seconds
        # Those that are being started again come soon.
        expects = self._expected.intersection(absent)
        waits = expects and now < self._expected_until and not over
        enough = least is not None and len(self._present) >= least
        # The own task may just be leaving for another coordinator.
        return bool(
            settled and enough and not waits and self._own.name in self._present
        )

    def _difference(self, others: Iterable[Hello]) -> str | None:
        # The own task comes first: the others are compared with it.
        hellos = {hello.name: hello for hello in (self._own, *others)}
        return difference(
            {
                name: {"tasks": hello.tasks, "facts": hello.facts}
                for name, hello in hellos.items()
            }
        )
