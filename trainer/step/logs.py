"""`Totals`: sums of logs over an interval, and the values they give."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.step.metrics.metric_set import MetricSet
from trainer.step.metrics.states import METRIC
from trainer.step.reductions.sums import Average, Sums

EXAMPLES = "_examples"  # Counts examples; not logged as a value of its own.
DATA_WAIT = "_data_wait"  # Seconds spent waiting for input; not a value.
MISSES = "_misses"  # Counts numbers without a row; see `lookups`.
LOSS_PART = "loss:"  # Averages under this prefix are summands of "loss".
STATE = "state:"  # In a checkpoint: states of metrics that do not add up.

# A step's result: `Average`s and lists of metric increments, by name.
StepLogs = dict[str, Any]


# What travels with the values but is not one.
_NO_VALUES = (EXAMPLES, DATA_WAIT, MISSES)


class Totals:
    """Holds the sums over an interval, in float64.

    Float32 sums of counts stop growing at 2**24; these do not. Results are
    fetched from the device only when a value is read.

    Args:
        metrics: computes results from the increments, and holds the states
            that do not add up.
        kept_for: which of these states is this interval's.

    Attributes:
        sums: what the next graph call goes on from; `None` before a step.
    """

    def __init__(self, metrics: MetricSet, kept_for: str) -> None:
        self._metrics = metrics
        self._kept_for = kept_for
        self.sums: Sums | None = None
        self._stored: dict[str, list[np.ndarray]] = {}

    @property
    def examples(self) -> int:
        """How many examples were counted."""
        return int(self.sums.total()[EXAMPLES].total) if self.sums else 0

    def values(self, *, whole_sets: bool = True) -> dict[str, float]:
        """The averages and metrics over the interval; empty before a step.

        Args:
            whole_sets: also metrics over a whole set.
        """
        if self.sums is None:
            return {}
        values = {}
        parts = []
        sums = self.sums.total()  # Here the device is waited for.
        for name, value in sums.items():
            if not isinstance(value, Average) or name in _NO_VALUES:
                continue
            mean = float(value.total / value.count) if value.count else 0.0
            if name.startswith(LOSS_PART):
                parts.append(mean)
            else:
                values[name] = mean
        if parts:
            # Each group of terms has a denominator of its own, so only their
            # means can be added.
            values = {"loss": sum(parts), **values}
        increments = {
            name.removeprefix(METRIC): value
            for name, value in sums.items()
            if name.startswith(METRIC)
        }
        return values | self._metrics.results(
            increments, self._kept_for, whole_sets=whole_sets
        )

    def reset(self) -> None:
        """Starts a new interval."""
        self.sums, self._stored = None, {}
        self._metrics.reset(self._kept_for)

    def state(self) -> dict[str, list[np.ndarray]]:
        """What a checkpoint must hold of an interval that is under way.

        The first axis of each sum counts replicas.
        """
        # Nothing has run since the restore: hand back exactly what was read.
        if self._stored:
            return dict(self._stored)
        if self.sums is None:
            return {}
        found = {
            name: list(value)
            for name, value in self.sums.by_replica().items()
            # A clock's reading: two equal runs would differ in their
            # checkpoints. And a run with a miss saves nothing.
            if name not in (DATA_WAIT, MISSES)
        }
        carried = self._metrics.states(self._kept_for)
        return found | {
            f"{STATE}{name}": arrays for name, arrays in carried.items()
        }

    def load_state(self, state: Mapping[str, list[np.ndarray]]) -> None:
        """Takes back what `state` returned."""
        # First: it fails on a bad structure before anything is set.
        _averages(state)
        self.reset()
        self._stored = dict(state)
        # Metrics get their variables with the first batch, after the restore.
        if self._metrics.is_ready:
            self.give_states()

    def give_states(self) -> None:
        """Gives metrics what `load_state` was given, once they are known."""
        stored, self._stored = self._stored, {}
        if not stored:
            return
        sums: StepLogs = dict(_averages(stored))
        of_metrics = {n: a for n, a in stored.items() if n not in sums}
        self.sums = Sums.of(
            sums | self._metrics.load(of_metrics, self._kept_for)
        )


def _averages(state: Mapping[str, list[np.ndarray]]) -> dict[str, Average]:
    return {
        name: Average(*arrays)
        for name, arrays in state.items()
        if not name.startswith((METRIC, STATE))
    }
