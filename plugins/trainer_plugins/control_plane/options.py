"""The options of the control plane that a strategy sets, and its time-outs.

A user may set the fields of `Options`. The constants are the defaults, and the
limits that no one needs to change; all are in seconds.
"""

import dataclasses
import math
from collections.abc import Collection
from typing import Annotated, TypeAlias

from annotated_types import Ge

from trainer import UserError
from trainer.plugin_api import Finite

# Both ends of a connection send a heartbeat this often.
HEARTBEAT_SECONDS = 1.0
# Longer than a healthy process ever blocks its other threads: tracing and
# compiling release Python's lock now and then.
SILENCE_SECONDS = 15.0
# A few heartbeats at least.
Silence: TypeAlias = Annotated[Finite, Ge(2 * HEARTBEAT_SECONDS)]
# A name server, or the coordinator's answer.
ANSWER_SECONDS = 5.0
# For the others to read all messages before a connection is closed.
GOODBYE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of all tasks of a run.

    Attributes:
        start_seconds: how long the tasks wait for each other to join.
        silence_seconds: a task without a heartbeat for this long is lost.
        leave_seconds: how long a task may be busy with something else, such
            as a user's callback, after the run has ended; then its process
            is ended.
        min_workers: makes the cluster elastic: this many tasks, including
            the chief, are enough. `None` requires all of them.
        settle_seconds: an incomplete elastic cluster starts once no new task
            has joined for this long.
        expendable: the tasks whose loss does not end the run.
    """

    start_seconds: float = 120.0
    silence_seconds: float = SILENCE_SECONDS
    leave_seconds: float = math.inf
    min_workers: int | None = None
    settle_seconds: float = 15.0
    expendable: Collection[str] = ()

    @property
    def is_elastic(self) -> bool:
        """Whether fewer than all tasks can be enough."""
        return self.min_workers is not None

    def check(self, tasks: Collection[str]) -> None:
        """Checks the options against the names of all tasks.

        Raises:
            UserError: there are too few tasks.
        """
        if self.min_workers is not None and self.min_workers > len(tasks):
            raise UserError(
                f"min_workers is {self.min_workers}, but the cluster has "
                f"{len(tasks)} workers. Choose 1 to {len(tasks)}."
            )
