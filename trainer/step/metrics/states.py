"""What a metric has measured, as numbers that steps return and add up.

A Keras metric updates its variables by reading and writing them, and replicas
that do so at once lose updates. Here the variables only define the shape of a
state, and its values travel as tensors:

- `Summed`: the increments from the initial state are added up over replicas,
  micro-batches and steps, which is exact for a metric whose state is a sum.
- `Carried`: any other state goes from one whole global batch to the next, in
  variables of this process, outside of the strategy. Every process updates its
  own by the same batch, so all hold the same.
- `WholeSet`, in `trainer.step.metrics.whole_set`: what an evaluation gathers.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.step.context import step_context
from trainer.step.keras.private import native, tensors_apart

METRIC = "metric:"  # The prefix of lists of increments.
VALUES = "values:"  # The prefix of what other states are updated by.
# The intervals that states are kept for: since the last log, since the start of
# the epoch, and an evaluation.
INTERVAL, EPOCH, EVAL = "interval", "epoch", "eval"
TRAINING = (INTERVAL, EPOCH)


class Call(NamedTuple):
    """One call of a metric's `update_state`.

    Attributes:
        arguments: its positional arguments.
        options: its keyword arguments.
    """

    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Summed:
    """A state that is the initial one plus the sum of all increments.

    Args:
        metric: a built metric.
        initial: its state before any update.
    """

    prefix: ClassVar[str] = METRIC

    def __init__(
        self, metric: keras.Metric, initial: Sequence[np.ndarray]
    ) -> None:
        self._metric, self._initial = metric, initial

    def of(self, calls: Sequence[Call]) -> list[Any]:
        """What a step returns of some updates."""
        # From the initial state, not from the variables: an update then
        # returns what it adds, whatever came before.
        start = [tf.constant(v) for v in self._initial]
        after = updated(self._metric, start, calls)
        return [b - a for a, b in zip(start, after, strict=True)]

    def result(self, kept_for: str, total: Sequence[Any] | None) -> Any:
        """What the metric makes of a sum; `None` without one."""
        if total is None:
            return None
        # Increments are summed in float64. NumPy casts a number in a hundredth
        # of the time of an operation.
        state = [
            np.asarray(before + added).astype(before.dtype)
            for before, added in zip(self._initial, total, strict=True)
        ]
        return result(self._metric, [tf.convert_to_tensor(v) for v in state])


class Carried:
    """The states of a metric that depend on the order and size of batches.

    Args:
        metric: a built metric.
        initial: its state before any update.

    Attributes:
        dtypes: of the tensors that it is updated by.
    """

    prefix: ClassVar[str] = VALUES

    def __init__(
        self, metric: keras.Metric, initial: Sequence[np.ndarray]
    ) -> None:
        self._metric, self._initial = metric, initial
        self._states = {
            kept_for: [tf.Variable(v, trainable=False) for v in initial]
            for kept_for in (*TRAINING, EVAL)
        }
        # Which of them any traced step updates.
        self._updated: set[str] = set()
        self._rebuild: Callable[[Sequence[Any]], Any] = list
        self.dtypes: list[tf.DType] = []

    def of(self, calls: Sequence[Call]) -> list[Any]:
        """What a step returns of some updates, in the form `update` takes."""
        # All replicas make the same calls, so the last one to be traced may
        # say how they are rebuilt.
        leaves, self._rebuild = tensors_apart([tuple(call) for call in calls])
        self.dtypes = [leaf.dtype for leaf in leaves]
        return leaves

    def update(
        self, kept_for: Sequence[str], leaves: Sequence[tf.Tensor]
    ) -> None:
        """Updates states by a global batch, in cross-replica context."""
        calls = [Call(*call) for call in self._rebuild(leaves)]
        self._updated.update(kept_for)
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

    def result(self, kept_for: str, total: Sequence[Any] | None) -> Any:
        """What the metric makes of a state; `None` if no step updates it."""
        if kept_for not in self._updated:
            return None
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


def initial_state(metric: keras.Metric) -> list[np.ndarray]:
    """What a metric's variables hold before its first update.

    An overridden `reset_state` defines it. Keras' default sets everything to
    zero, even a variable with another initializer.
    """
    # It may be called while a step is traced, and needs values, not tensors
    # of the graph.
    with tf.init_scope():
        if type(metric).reset_state is keras.Metric.reset_state:
            return [native(v).numpy() for v in metric.variables]
        state = metric.stateless_reset_state()
        return [native(v).numpy() for v in state]


def updated(
    metric: keras.Metric, state: Sequence[Any], calls: Sequence[Call]
) -> list[tf.Tensor]:
    """The state after some updates."""
    values = [tf.convert_to_tensor(v) for v in state]
    # The metric's own update, which must not be taken for one more of its
    # layer's; see `LayerMetrics`.
    with step_context.within(metric_calls=None):
        for call in calls:
            values = metric.stateless_update_state(
                values, *call.arguments, **call.options
            )
    return [tf.convert_to_tensor(v) for v in values]


def result(metric: keras.Metric, state: Sequence[Any]) -> Any:
    """What a metric makes of a state: a number, an array or a dict of these."""

    def read(value: Any) -> Any:
        # Read it within the scope: outside of it a variable has the value of
        # its initializer.
        if isinstance(value, keras.Variable):
            return tf.convert_to_tensor(value.value)
        return value

    mapping = list(zip(metric.variables, state, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        return keras.tree.map_structure(read, metric.result())


def build(metric: keras.Metric, calls: Sequence[Call]) -> None:
    """Lets a metric make the variables that it makes on its first update.

    Their values stay those of their initializers. Call it in the strategy's
    scope, outside of any step.
    """
    with keras.StatelessScope():
        for call in calls:
            metric.update_state(*call.arguments, **call.options)


def as_numbers(
    name: str, found: Any, taken: dict[str, float]
) -> dict[str, float]:
    """A metric's result as numbers by name.

    Args:
        name: the metric's.
        found: a number, an array or a dict of these.
        taken: what other metrics have given.
    """
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


def declared(metric: keras.Metric) -> bool | None:
    """What a metric says of itself: `additive`, see `trainer.additive`."""
    said = getattr(metric, "additive", None)
    return said if isinstance(said, bool) else None


def is_sum(metric: keras.Metric) -> bool:
    """Whether a metric says that it adds up, or is known to.

    Of Keras' own those are, for outputs of rank 2 or more, but for one that
    wraps a function, or reduces an axis that may be the batch's.
    """
    said, kind = declared(metric), type(metric)
    if said is not None:
        return said
    # Exactly Keras' class: a subclass may override its update.
    if vars(keras.metrics).get(kind.__name__) is not kind or kind in (
        keras.metrics.MeanMetricWrapper,
        keras.metrics.Mean,
        keras.metrics.Sum,
    ):
        return False
    if "axis" in inspect.signature(kind.__init__).parameters:
        return getattr(metric, "axis", None) == -1
    return kind is not keras.metrics.CosineSimilarity
