"""Logs of steps: names of their results, and values over an interval."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.runtime.schema import Misfit
from trainer.step.metrics.metric_set import MetricSet
from trainer.step.metrics.states import METRIC
from trainer.step.reductions.sums import Average, Sums

EXAMPLES = "_examples"  # Counts examples; not logged as a value of its own.
DATA_WAIT = "_data_wait"  # Seconds spent waiting for input; not a value.
MISSES = "_misses"  # Counts numbers without a row; see `lookups`.
LOSS_PART = "loss:"  # Averages under this prefix are summands of "loss".
STATE = "state:"  # In a checkpoint: states of metrics that do not add up.

# What travels with the values but is not one.
_NO_VALUES = (EXAMPLES, DATA_WAIT, MISSES)

# A step's result: `Average`s and lists of metric increments, by name.
StepLogs = dict[str, Any]


class Interval:
    """Holds the sums over an interval, in float64.

    Float32 sums of counts stop growing at 2**24; these do not. Results are
    fetched from the device only when a value is read.

    Args:
        metrics: compute results, and hold the states that are no sums.
        name: such as `"epoch"`.

    Attributes:
        sums: from which the next graph call continues; `None` before a step.
    """

    def __init__(self, metrics: MetricSet, name: str) -> None:
        self._metrics = metrics
        self._name = name
        self.sums: Sums | None = None

    @property
    def examples(self) -> int:
        """How many examples were counted."""
        return int(self.total(EXAMPLES))

    def total(self, name: str) -> float:
        """The total of one of the averages; 0 without it. Waits for steps."""
        if self.sums is None or name not in self.sums.packing.names:
            return 0.0
        return float(self.sums.total[name].total)

    def values(self, *, whole_sets: bool = True) -> dict[str, float]:
        """The averages and metrics over the interval; empty before a step.

        Args:
            whole_sets: also metrics over a whole set.
        """
        if self.sums is None:
            return {}
        values, parts, increments = {}, [], {}
        # Here the device is waited for.
        for name, value in self.sums.total.items():
            if name.startswith(METRIC):
                increments[name.removeprefix(METRIC)] = value
            elif name not in _NO_VALUES:
                mean = float(value.total / value.count) if value.count else 0.0
                if name.startswith(LOSS_PART):
                    parts.append(mean)
                else:
                    values[name] = mean
        if parts:
            # Each part has a denominator of its own, so only their means can
            # be added.
            values = {"loss": sum(parts), **values}
        return values | self._metrics.results(
            increments, self._name, whole_sets=whole_sets
        )

    def reset(self) -> None:
        """Starts a new interval."""
        self.sums = None
        self._metrics.states.pop(self._name, None)

    def state(self) -> dict[str, list[np.ndarray]]:
        """Returns the state of the current interval for a checkpoint.

        The first axis of each sum counts replicas.
        """
        sums = {} if self.sums is None else self.sums.by_replica()
        found = {
            name: list(value)
            for name, value in sums.items()
            # A clock's reading: two equal runs would differ in their
            # checkpoints. And a run with a miss saves nothing.
            if name not in (DATA_WAIT, MISSES)
        }
        states = self._metrics.states.get(self._name, {})
        return found | {
            f"{STATE}{name}": arrays for name, arrays in states.items()
        }

    def load_state(self, state: Mapping[str, list[np.ndarray]]) -> None:
        """Takes back what `state` returned.

        Raises:
            Misfit: an average is not one for each replica.
        """
        sums = {
            name: arrays if name.startswith(METRIC) else Average(*arrays)
            for name, arrays in state.items()
            if not name.startswith(STATE)
        }
        averages = {n: x for n, x in sums.items() if isinstance(x, Average)}
        for name, both in averages.items():
            if any(np.ndim(one) != 1 for one in both):
                raise Misfit(f"the sums of {name} have another shape")
        self.reset()
        self.sums = Sums.of(sums) if sums else None
        self._metrics.states[self._name] = {
            name.removeprefix(STATE): arrays
            for name, arrays in state.items()
            if name.startswith(STATE)
        }
