"""States of metrics that do not add up, carried from step to step.

Such a state depends on the order of the batches. It lives in variables of
this process, outside of the strategy: every process updates its own by the
same global batch, so all hold the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.step.keras.private import tensors_apart
from trainer.step.metrics.stateless import Call, result, updated

# The intervals that states are kept for: since the last log, since the start of
# the epoch, and an evaluation.
INTERVAL, EPOCH, EVAL = "interval", "epoch", "eval"
TRAINING = (INTERVAL, EPOCH)


class Carried:
    """The states of one metric.

    Args:
        metric: a built metric.
        initial: its state before any update.
    """

    def __init__(
        self, metric: keras.Metric, initial: Sequence[np.ndarray]
    ) -> None:
        self._metric = metric
        self._initial = initial
        self._states = {
            kept_for: [tf.Variable(v, trainable=False) for v in self._initial]
            for kept_for in (*TRAINING, EVAL)
        }
        self._rebuild: Callable[[Sequence[tf.Tensor]], list[Call]] | None = None
        self.dtypes: list[tf.DType] = []

    def flatten(self, calls: Sequence[Call]) -> list[Any]:
        """The tensors of a replica's calls, in the form `update` takes."""
        # All replicas make the same calls, so the last one to be traced may
        # say how they are rebuilt.
        leaves, rebuild = tensors_apart([tuple(call) for call in calls])
        self._rebuild = lambda given: [Call(*one) for one in rebuild(given)]
        self.dtypes = [leaf.dtype for leaf in leaves]
        return leaves

    def update(
        self, kept_for: Sequence[str], leaves: Sequence[tf.Tensor]
    ) -> None:
        """Updates states by a global batch, in cross-replica context."""
        assert self._rebuild is not None
        calls = self._rebuild(leaves)
        for one in kept_for:
            state = self._states[one]
            before = [v.read_value() for v in state]
            after = updated(self._metric, before, calls)
            for variable, value in zip(state, after, strict=True):
                variable.assign(value)

    @property
    def variables(self) -> list[tf.Variable]:
        """What holds all its states."""
        return [v for state in self._states.values() for v in state]

    def result(self, kept_for: str) -> Any:
        """What the metric makes of a state."""
        return result(self._metric, self._states[kept_for])

    def reset(self, kept_for: str) -> None:
        """Sets a state back to what it was before any update."""
        self.load(kept_for, self._initial)

    def state(self, kept_for: str) -> list[np.ndarray]:
        """A state, for a checkpoint."""
        return [v.numpy() for v in self._states[kept_for]]

    def load(self, kept_for: str, arrays: Sequence[Any]) -> None:
        """Takes back what `state` returned."""
        for variable, array in zip(self._states[kept_for], arrays, strict=True):
            variable.assign(tf.cast(array, variable.dtype))
