"""Time-outs after which the launcher ends a process."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """Time-outs, in seconds.

    Attributes:
        end_seconds: how long a task may take to save its state after a
            signal.
        leave_seconds: how long the other tasks may keep running once the run
            is done, by job. A `"server"` only waits for its chief to end; an
            evaluator evaluates the last checkpoint.
        stopped_seconds: how long a task may be stopped (SIGSTOP). More than
            its peers need to detect it, so that they name it and leave first.
        left_behind_seconds: how long a task may outlive a peer of its run.
            More than the `Watchdog` allows for a save, because a chief
            finishes its current save before it ends.
        rendezvous_seconds: a task that was started this shortly before a peer
            left the run may never have been in that run.
    """

    # More than `Preemption.grace_seconds` (25), so that a task which cannot
    # save ends by itself with 75.
    end_seconds: float = 30.0
    leave_seconds: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {
            "server": 10.0,
            "chief": 60.0,
            "worker": 60.0,
            "evaluator": 300.0,
        }
    )
    # More than the `silence_seconds` (15) of both strategies.
    stopped_seconds: float = 20.0
    # More than `Watchdog.checkpoint_seconds` (1800).
    left_behind_seconds: float = 2100.0
    rendezvous_seconds: float = 60.0
