"""What a strategy configures in the control plane."""

import dataclasses
import math
from collections.abc import Collection

from trainer import UserError
from trainer_plugins.control_plane import timeouts


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
    silence_seconds: float = timeouts.SILENCE_SECONDS
    leave_seconds: float = math.inf
    min_workers: int | None = None
    settle_seconds: float = timeouts.SETTLE_SECONDS
    expendable: Collection[str] = ()

    @property
    def is_elastic(self) -> bool:
        """Whether fewer than all tasks can be enough."""
        return self.min_workers is not None

    def check(self, tasks: Collection[str]) -> None:
        """Checks the options against the names of all tasks.

        Raises:
            UserError: one is impossible.
        """
        least = 2 * timeouts.HEARTBEAT_SECONDS
        if self.silence_seconds < least:
            raise UserError(
                f"silence_seconds = {self.silence_seconds:g} must be at least "
                f"{least:g}: a heartbeat is sent every second."
            )
        if self.min_workers is None:
            return
        if any(name.startswith("ps ") for name in tasks):
            raise UserError(
                "min_workers is for clusters without parameter servers: there "
                "a worker may be lost anyway. Leave it out."
            )
        if not 1 <= self.min_workers <= len(tasks):
            raise UserError(
                f"min_workers is {self.min_workers}, but the cluster has "
                f"{len(tasks)} workers. Choose 1 to {len(tasks)}."
            )
