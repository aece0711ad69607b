"""Sums of step results over an interval, and the values they stand for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.step.average import Average
from trainer.step.metrics import METRIC, MetricSet

EXAMPLES = "_examples"  # Counts examples; not logged as a value of its own.
DATA_WAIT = "_data_wait"  # Seconds spent waiting for input; not a value.
LOSS_PART = "loss:"  # Averages under this prefix are summands of "loss".
STATE = "state:"  # In a checkpoint: states of metrics that do not add up.

# A step's result: `Average`s and lists of metric increments, by name.
StepLogs = dict[str, Any]


class Totals:
    """Adds up what host loops return, in float64.

    Float32 sums of counts stop growing at 2**24; these do not. Results are
    fetched from the device only when a value is asked for.

    Args:
        metrics: computes results from the increments, and holds the states
            that do not add up.
        kept_for: which of these states belongs to this interval.
    """

    def __init__(self, metrics: MetricSet, kept_for: str) -> None:
        self._metrics = metrics
        self._kept_for = kept_for
        self._pending: list[StepLogs] = []
        self._sums: StepLogs | None = None
        self._stored: dict[str, list[np.ndarray]] = {}

    def add(self, sums: StepLogs) -> None:
        """Takes the summed result of one host loop."""
        self._pending.append(sums)

    @property
    def examples(self) -> int:
        """How many examples were counted."""
        sums = self._fold()
        return int(sums[EXAMPLES].total) if sums else 0

    def values(self) -> dict[str, float]:
        """The averages and metrics over the interval; empty before a step."""
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
        return values | self._metrics.results(increments, self._kept_for)

    def reset(self) -> None:
        """Starts a new interval."""
        self._pending, self._sums, self._stored = [], None, {}
        self._metrics.reset(self._kept_for)

    def state(self) -> dict[str, list[np.ndarray]]:
        """What a checkpoint must hold of an interval that is under way."""
        sums = self._fold()
        if sums is None:
            return {}
        carried = self._metrics.states(self._kept_for)
        return {name: list(value) for name, value in sums.items()} | {
            f"{STATE}{name}": arrays for name, arrays in carried.items()
        }

    def load_state(self, state: Mapping[str, list[np.ndarray]]) -> None:
        """Takes back what `state` returned."""
        self.reset()
        if not state:
            return
        self._sums = {
            name: Average(*arrays)
            for name, arrays in state.items()
            if not name.startswith((METRIC, STATE))
        }
        self._stored = {
            name: arrays
            for name, arrays in state.items()
            if name.startswith((METRIC, STATE))
        }
        if self._metrics.is_ready:
            self.give_states()

    def give_states(self) -> None:
        """Gives metrics what `load_state` was given, once they are known."""
        stored, self._stored = self._stored, {}
        if self._sums is None:
            return
        for name, arrays in self._metrics.renamed(stored).items():
            sums = self._metrics.load(
                name.partition(":")[2],
                arrays,
                kept_for=self._kept_for,
                is_sum=name.startswith(METRIC),
            )
            if sums is not None:
                self._sums[METRIC + name.partition(":")[2]] = sums

    def _fold(self) -> StepLogs | None:
        for sums in self._pending:
            fresh = tf.nest.map_structure(
                lambda leaf: np.asarray(leaf, np.float64), sums
            )
            before = self._sums or {}
            self._sums = {
                **before,
                **{
                    name: tf.nest.map_structure(np.add, before[name], value)
                    if name in before
                    else value
                    for name, value in fresh.items()
                },
            }
        self._pending = []
        return self._sums
