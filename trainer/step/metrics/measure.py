"""One metric of a run, and its state as numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.step.metrics.carried import Carried
from trainer.step.metrics.stateless import initial_state
from trainer.step.metrics.whole_set import WholeSet, WholeSetMetric


@dataclasses.dataclass
class Measure:
    """One metric of a run.

    Attributes:
        metric: what is measured.
        output: the number or the key of its output; `None` for what a layer
            or an overridden step measures.
        in_layer: whether a layer updates it.
        carried: its states, if it does not add up; or the whole set.
        adds_up: whether it does; `None` until that is known.
        initial: its state before any update.
        kept_for: which of the carried states the traced steps update.
    """

    metric: keras.Metric
    output: int | str | None = None
    in_layer: bool = False
    carried: Carried | WholeSet | None = None
    adds_up: bool | None = None
    initial: list[np.ndarray] = dataclasses.field(default_factory=list)
    kept_for: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        if isinstance(self.metric, WholeSetMetric):
            self.adds_up, self.carried = False, WholeSet(self.metric)
        self.begin()

    @property
    def of_whole_set(self) -> bool:
        """Whether it is measured in evaluations only, over all examples."""
        return isinstance(self.carried, WholeSet)

    def begin(self) -> None:
        """Takes the state that the variables have as the initial one."""
        # It may be called while a step is traced, and needs values, not tensors
        # of the graph.
        with tf.init_scope():
            self.initial = initial_state(self.metric)

    def carry(self) -> None:
        """Makes the variables that its states are carried in."""
        self.adds_up, self.carried = False, Carried(self.metric, self.initial)


def sum_state(
    initial: list[np.ndarray], total: Sequence[Any]
) -> list[tf.Tensor]:
    """A state from the initial one and the sum of all increments."""
    return [
        # Increments are summed in float64. NumPy casts a number in a hundredth
        # of the time of an operation.
        tf.convert_to_tensor(np.asarray(before + added).astype(before.dtype))
        for before, added in zip(initial, total, strict=True)
    ]


def as_numbers(
    name: str, found: Any, taken: dict[str, float]
) -> dict[str, float]:
    """A metric's result as numbers by name."""
    if isinstance(found, dict):
        values: dict[str, float] = {}
        for key, value in found.items():
            # Under its own key, as in `fit`, unless another metric has it.
            full = key if key not in taken else f"{name}_{key}"
            values |= as_numbers(full, value, taken)
        return values
    if np.ndim(found):
        # One value per class, such as F1Score(average=None).
        return {
            f"{name}_{i}": float(value)
            for i, value in enumerate(np.ravel(found))
        }
    return {name: float(found)}
