"""`Control`: requests to stop, save or restart a run while it trains."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Requests(NamedTuple):
    """What any process of the run requests; equal in all of them.

    Attributes:
        stop: end training here.
        save: save a checkpoint.
        restart: save and leave, to be started again.
        shorter: make the graph calls shorter.
    """

    stop: bool
    save: bool
    restart: bool
    shorter: bool


class _Processes(Protocol):
    """The part of a strategy plugin by which processes agree."""

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Which flags are set in any process of the run."""

    def why_start_again(self) -> str | None:
        """Why the run should save and be started again."""


class Control:
    """The requests of users, callbacks and signals, from any thread.

    Attributes:
        stop_reason: why training ends early; `None` if it does not.
        restart_reason: why the run saves and leaves, to be started again.
        save_requested: whether a checkpoint is wanted.
    """

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self.restart_reason: str | None = None
        self.save_requested = False

    def clear(self) -> None:
        """Forgets every request, at the beginning of a run."""
        self.stop_reason = self.restart_reason = None
        self.save_requested = False

    def why_restart(self, processes: _Processes) -> str | None:
        """Why this process requests a restart; `None` if it does not."""
        return self.restart_reason or processes.why_start_again()

    def agree(
        self,
        processes: _Processes,
        *,
        stopped: bool = False,
        shorter: bool = False,
    ) -> Requests:
        """One exchange among all processes of the run, at one step.

        Args:
            processes: the strategy plugin.
            stopped: whether this process's model or callbacks stop training.
            shorter: whether this process requests shorter graph calls.
        """
        # All flags in one exchange: each costs a collective among processes.
        own = Requests(
            stop=stopped or self.stop_reason is not None,
            save=self.save_requested,
            restart=self.why_restart(processes) is not None,
            shorter=shorter,
        )
        return Requests(*processes.any_of(own))
