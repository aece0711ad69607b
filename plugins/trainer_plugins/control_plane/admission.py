"""Decides which tasks take part in a run, and when it starts."""

import dataclasses
import hashlib
import hmac
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from trainer.plugin_api import schema
from trainer_plugins.control_plane.difference import (
    difference,
    label,
    listed,
    missing,
)
from trainer_plugins.control_plane.options import Options

_HELLO = schema.record({"join": str, "id": str, "facts": dict[str, Any]})
_SECRET = "TRAINER_COORDINATOR_SECRET"
# After a mistake was found, the remaining tasks may join to be informed, too.
_LINGER_SECONDS = 5.0
_WARN_AFTER_SECONDS = 10.0
_WARN_EVERY_SECONDS = 30.0


def proof(text: str) -> str:
    """Returns an HMAC of a text, which only the tasks of a run can compute.

    Their secret is `TRAINER_COORDINATOR_SECRET`, which `trainer.launch` sets;
    it never travels itself. Without it, every program that reaches the port
    and speaks the protocol is trusted, as TensorFlow's own ports trust it.
    """
    key = os.environ.get(_SECRET, "").encode()
    # Another program may send any text, even one that is not Unicode.
    data = text.encode(errors="surrogatepass")
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def is_proof(given: Any, text: str) -> bool:
    """Whether a proof is right."""
    return (
        isinstance(given, str)
        and given.isascii()
        and hmac.compare_digest(given, proof(text))
    )


@dataclasses.dataclass(frozen=True)
class Hello:
    """How a task introduces itself.

    Attributes:
        name: such as `"worker 1"`.
        id: distinguishes a process that connects again from a second one
            with the same name.
        facts: JSON values that must be equal everywhere, such as versions and
            the addresses of all tasks.
    """

    name: str
    id: str
    facts: Mapping[str, Any]

    @classmethod
    def parse(cls, message: Mapping[str, Any] | None) -> "Hello | None":
        """Reads an introduction; `None` if it is not one."""
        try:
            _HELLO(message, "it")
        except schema.Misfit:
            return None
        assert message is not None
        return cls(message["join"], message["id"], message["facts"])


class Admission:
    """The tasks that have joined so far, and any problem with them.

    Args:
        own: the introduction of the task in which the coordinator runs.
        tasks: the address of every task.
        options: see `Options`.
    """

    def __init__(
        self, own: Hello, tasks: Mapping[str, str], options: Options
    ) -> None:
        self._own = own
        self._tasks = tasks
        self._options = options
        self._hellos: dict[str, Hello] = {}
        self._present: set[str] = set()
        now = time.monotonic()
        self._deadline = now + options.start_seconds
        self._next_warning = now + _WARN_AFTER_SECONDS
        self._newest = now
        self._problem: str | None = None
        self._problem_since = 0.0

    def is_another(self, hello: Hello) -> bool:
        """Whether the task of that name is another process so far."""
        known = self._hellos.get(hello.name)
        return known is not None and known.id != hello.id

    def note(self, problem: str | None) -> None:
        """Notes a mistake; the first one ends the start for all."""
        if self._problem is None and problem is not None:
            self._problem, self._problem_since = problem, time.monotonic()

    def add(self, hello: Hello) -> None:
        """Adds a task, and records any problem with it."""
        self._hellos[hello.name] = hello
        self._present.add(hello.name)
        self._newest = time.monotonic()
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
        now = time.monotonic()
        absent = [name for name in self._tasks if name not in self._present]
        over = now >= self._deadline
        if self._problem is not None:
            lingered = now - self._problem_since > _LINGER_SECONDS
            if not (over or lingered or not absent):
                return None
            # Compared again: more tasks may have come by now, and the message
            # should name all that differ.
            found = self._difference(self._hellos.values())
            return {"refuse": found or self._problem}
        least = self._options.min_workers
        settled = over or now >= self._newest + self._options.settle_seconds
        enough = (
            least is not None
            and settled
            and len(self._present) >= least
            and self._own.name in self._present
        )
        if enough or not absent:
            return {"start": [n for n in self._tasks if n not in absent]}
        if over:
            text = missing(absent, self._tasks, self._options.start_seconds)
            if self._options.is_elastic:
                text = f"{text}; min_workers is {least}"
            return {"missing": text}
        if now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_SECONDS
            labels = [label(name, self._tasks) for name in absent]
            logging.warning("Waiting for %s.", listed(labels))
        return None

    def _difference(self, others: Iterable[Hello]) -> str | None:
        # In the cluster's order, so that every attempt gives the same message.
        found = {one.name: one.facts for one in (self._own, *others)}
        order = [name for name in self._tasks if name in found]
        return difference(
            {n: found[n] for n in dict.fromkeys([*order, *found])}
        )
