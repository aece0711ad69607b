"""How long the launcher waits for a process before it ends it."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Patience:
    """Time-outs, in seconds.

    Attributes:
        end_seconds: how long a task may save its state after a signal.
        leave_seconds: how long the others may go on after the run is done, by
            job. A `"server"` only waits for its chief's word, an evaluator
            looks at the last checkpoint.
        stopped_seconds: how long a task may be stopped (SIGSTOP). Its peers
            need less to notice: they name it, and leave.
        left_behind_seconds: how long a task may outlive a peer of its run.
            More than the `Watchdog` allows for a save: the chief waits for
            one that is under way before it ends.
        met_seconds: who was started so shortly before its peer left a run
            may never have been in that run.
    """

    end_seconds: float = 30.0
    leave_seconds: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {
            "server": 10.0,
            "chief": 60.0,
            "worker": 60.0,
            "evaluator": 300.0,
        }
    )
    stopped_seconds: float = 20.0
    left_behind_seconds: float = 2100.0
    met_seconds: float = 60.0
