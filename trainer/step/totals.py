"""Sums of step results over an interval, and the values they stand for."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.step.average import Average
from trainer.step.metrics import MetricSet

EXAMPLES = "_examples"  # Counts examples; not logged as a value of its own.
DATA_WAIT = "_data_wait"  # Seconds spent waiting for input; not a value.
LOSS_PART = "loss:"  # Averages under this prefix are summands of "loss".
METRIC = "metric:"  # Lists of increments stand under this prefix.

# A step's result: `Average`s and lists of metric increments, by name.
StepLogs = dict[str, Any]


class Totals:
    """Adds up what host loops return, in float64.

    Float32 sums of counts stop growing at 2**24; these do not. Results are
    fetched from the device only when a value is asked for.
    """

    def __init__(self) -> None:
        self._pending: list[StepLogs] = []
        self._sums: StepLogs | None = None

    def add(self, sums: StepLogs) -> None:
        """Takes the summed result of one host loop."""
        self._pending.append(sums)

    @property
    def examples(self) -> int:
        """How many examples were counted."""
        sums = self._fold()
        return int(sums[EXAMPLES].total) if sums else 0

    def values(self, metrics: MetricSet) -> dict[str, float]:
        """The averages and metrics over the interval; empty before a step.

        Args:
            metrics: computes results from the increments.
        """
        sums = self._fold()
        if sums is None:
            return {}
        values = {}
        parts = []
        for name, value in sums.items():
            if not isinstance(value, Average) or name == EXAMPLES:
                continue
            mean = float(value.total / value.count) if value.count else 0.0
            if name.startswith(LOSS_PART):
                parts.append(mean)
            else:
                values[name] = mean
        if parts:
            values = {"loss": sum(parts), **values}
        increments = {
            name.removeprefix(METRIC): value
            for name, value in sums.items()
            if name.startswith(METRIC)
        }
        return values | metrics.results(increments)

    def reset(self) -> None:
        """Starts a new interval."""
        self._pending, self._sums = [], None

    def state(self) -> dict[str, list[np.ndarray]]:
        """What a checkpoint must hold of an interval that is under way."""
        sums = self._fold() or {}
        return {name: list(value) for name, value in sums.items()}

    def load_state(self, state: dict[str, list[np.ndarray]]) -> None:
        """Takes back what `state` returned."""
        self.reset()
        if state:
            self._sums = {
                name: arrays if name.startswith(METRIC) else Average(*arrays)
                for name, arrays in state.items()
            }

    def _fold(self) -> StepLogs | None:
        for sums in self._pending:
            fresh = tf.nest.map_structure(
                lambda leaf: np.asarray(leaf, np.float64), sums
            )
            self._sums = (
                fresh
                if self._sums is None
                else tf.nest.map_structure(np.add, self._sums, fresh)
            )
        self._pending = []
        return self._sums
