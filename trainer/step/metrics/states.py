"""The states of metrics: sums that steps return, and others on the host.

A Keras metric updates its variables by reading and writing them, and replicas
that do so at once lose updates. Here the variables only define the shape of a
state, and what updates add to it travels as tensors: over replicas,
micro-batches and steps these add up.

What a metric that is no sum is updated by is gathered from all replicas, in the
order of the examples and without padding, and handed to the host of every
process, which keeps the states. So a value is exact under every strategy.
"""

import dataclasses
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.context import step_context
from trainer.step.keras.private import native, tensors_apart
from trainer.values.annotations import Text
from trainer.values.configurable import configurable

METRIC = "metric:"  # The prefix of lists of increments.
VALUES = "values:"  # The prefix of what other metrics are updated by.
_WEIGHTS = "sample_weight"
# What is measured over: the steps since the last log, those since the start of
# the epoch, and an evaluation.
INTERVAL, EPOCH, EVAL = "interval", "epoch", "eval"
TRAINING = (INTERVAL, EPOCH)
# What metrics keep from one reset to the next is one for all of these.
KEPT = "kept"


class Call(NamedTuple):
    """One call of a metric's `update_state`.

    Attributes:
        arguments: its positional arguments.
        options: its keyword arguments.
    """

    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclasses.dataclass
class Measure:
    """A metric of a run, whose state is a sum.

    Attributes:
        metric: what is measured.
        output: the position of its output, or the key that an overridden step
            has for it; `None` where a layer updates it.
        in_layer: whether a layer does.
        adds_up: whether its state is a sum; `None` where that is known without
            a trial.
        is_weighted: whether sample weights and masks weigh it.
        initial: its state before any update.
    """

    metric: keras.Metric
    output: int | str | None = None
    in_layer: bool = False
    adds_up: bool | None = None
    is_weighted: bool = True
    initial: list[np.ndarray] = dataclasses.field(init=False)
    prefix: ClassVar[str] = METRIC
    # Whether it is measured in evaluations only, over all examples.
    of_whole_set: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Takes the state that the variables have as the initial one."""
        self.initial = initial_state(self.metric)

    def of(self, calls: Sequence[Call]) -> list[Any]:
        """What a step returns of some updates."""
        # From the initial state, not from the variables: an update then
        # returns what it adds, whatever came before.
        start = [tf.constant(v) for v in self.initial]
        after = updated(self.metric, start, calls)
        return [b - a for a, b in zip(start, after, strict=True)]

    def result(self, total: Sequence[Any] | None) -> Any:
        """Returns the metric's result for a sum; `None` for none."""
        if total is None:
            return None
        # Increments are summed in float64. NumPy casts a number in a hundredth
        # of the time of an operation.
        state = [
            np.asarray(before + added).astype(before.dtype)
            for before, added in zip(self.initial, total, strict=True)
        ]
        if type(self.metric).result is keras.metrics.Mean.result:
            # For the same reason: each row of a log has such values.
            summed, count = state
            return summed / count if count else 0.0
        return result(self.metric, [tf.convert_to_tensor(v) for v in state])


@configurable(module="trainer")
class WholeSetMetric(keras.Metric):
    """A function of all targets and predictions of an evaluation set.

    For values that are not a mean over examples: a rank correlation, BLEU, a
    Fréchet distance, retrieval. It is measured in evaluations only, exactly
    under every strategy: each example once, in the order of the data.

    Every process holds all targets and outputs of the set in the memory of its
    host, twice while the function runs. A device holds those of one global
    batch.

    Args:
        function: called as `function(y, y_pred)`, or, if it has such a
            parameter, with `sample_weight`. It gets NumPy arrays of shape
            `[examples, ...]`, floats of 32 bits or more, and returns a
            number. Without weights in the data, `sample_weight` is ones.
        name: by default that of the function.

    Raises:
        UserError: the function does not take two arguments.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: Text | None = None
    ) -> None:
        given = getattr(function, "__name__", type(function).__name__)
        super().__init__(name=name or given)
        self.function = function
        try:
            signature = inspect.signature(function)
            self.takes_weights = _WEIGHTS in signature.parameters
            options = {_WEIGHTS: None} if self.takes_weights else {}
            signature.bind(None, None, **options)
        except (TypeError, ValueError):
            raise UserError(
                f"WholeSetMetric.function = {given} cannot be called with y "
                "and y_pred. Give a function of these two, and of "
                f"{_WEIGHTS} if it needs that."
            ) from None

    def update_state(self, *arguments: Any, **options: Any) -> None:
        """Refuses: there is no state between batches."""
        raise UserError(
            f"The metric {self.name!r} needs a whole evaluation set, which "
            "Keras' own fit and evaluate do not give it: use those of "
            "trainer.Trainer."
        )

    result = update_state


class Ordered(Measure):
    """One whose state, on the host, depends on order and size of batches.

    It is a list of arrays, and `None` before the first batch.

    Attributes:
        rebuild: makes the calls of the step that is traced now of the values
            of its tensors.
    """

    prefix = VALUES
    rebuild: Callable[[Sequence[Any]], Any]

    def of(self, calls: Sequence[Call]) -> list[Any]:
        """The tensors that a replica's calls are made of."""
        # All replicas make the same calls, so any of them may say how they are
        # rebuilt.
        leaves, self.rebuild = tensors_apart([tuple(call) for call in calls])
        return leaves

    def after(self, state: Any, calls: Sequence[Call]) -> Any:
        """The state after one more batch."""
        after = updated(self.metric, self._before(state), calls)
        return [variable.numpy() for variable in after]

    def _before(self, state: Any) -> Any:
        # One of a checkpoint may be that of another metric of this name.
        is_own = state is not None and _shapes(state) == _shapes(self.initial)
        return state if is_own else self.initial

    def result(self, state: Any) -> Any:
        """Returns the metric's result for a state; `None` for none."""
        return None if state is None else result(self.metric, state)


def _shapes(arrays: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    return [np.shape(array) for array in arrays]


class Kept(Ordered):
    """One whose own `reset_state` keeps something.

    It has one state, and `reset_state` is called as `fit` does: at the start
    of an epoch and of an evaluation.
    """

    def restarted(self, state: Any) -> Any:
        """The state after `reset_state`."""
        after = was_reset(self.metric, self._before(state))
        return [np.array(one) for one in after]


class WholeSet(Ordered):
    """A `WholeSetMetric`, whose state are the batches so far."""

    metric: WholeSetMetric
    of_whole_set = True

    def after(self, state: Any, calls: Sequence[Call]) -> Any:
        """See `Ordered.after`."""
        (call,) = calls
        parts = (*call.arguments, call.options[_WEIGHTS])
        return [*(state or ()), tf.nest.map_structure(_as_array, parts)]

    def result(self, state: Any) -> float | None:
        """See `Ordered.result`.

        Raises:
            UserError: it returns no number, or batches differ in shape.
        """
        if state is None:
            return None
        y, y_pred, weight = tf.nest.map_structure(self._joined, *state)
        options = {}
        if self.metric.takes_weights:
            ones = np.ones(len(tf.nest.flatten(y_pred)[0]), "float32")
            options = {_WEIGHTS: ones if weight is None else weight}
        found = self.metric.function(y, y_pred, **options)
        is_number = np.ndim(found) == 0 and isinstance(
            np.asarray(found).item(), numbers.Real
        )
        if not is_number:
            raise UserError(
                f"The metric {self.metric.name!r} returned a "
                f"{type(found).__name__}. Return a number; for several, give "
                "several metrics."
            )
        return float(found)

    def _joined(self, *parts: np.ndarray | None) -> np.ndarray | None:
        given = [part for part in parts if part is not None]
        if not given:
            return None
        shapes = sorted({part.shape[1:] for part in given})
        if len(shapes) > 1:
            raise UserError(
                f"The metric {self.metric.name!r} gets batches of different "
                f"shapes: [batch, *{shapes[0]}] and [batch, *{shapes[1]}]. Pad "
                "the data, so that all examples have one shape."
            )
        return np.concatenate(given)


def _as_array(part: tf.Tensor | None) -> np.ndarray | None:
    if part is None:
        return None
    # As Keras' metrics do: NumPy would sum float16 in float16.
    narrow = part.dtype.is_floating and part.dtype.size < 4
    found: np.ndarray = (tf.cast(part, tf.float32) if narrow else part).numpy()
    return found


def initial_state(metric: keras.Metric) -> list[np.ndarray]:
    """Returns a metric's variables as they are before its first update.

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


def _has_own_reset(metric: keras.Metric) -> bool:
    return not type(metric).reset_state.__module__.startswith("keras.")


def keeps(metric: keras.Metric, calls: Sequence[Call]) -> bool:
    """Whether a `reset_state` keeps something of the state before.

    Args:
        metric: may have a variable that never changes.
        calls: some updates.
    """
    if not _has_own_reset(metric):
        return False
    before = [tf.convert_to_tensor(v) for v in initial_state(metric)]
    # What has not changed is the same tensor.
    after = updated(metric, before, calls)
    full = [tf.fill(v.shape, tf.cast(7, v.dtype)) for v in before]
    left = was_reset(metric, full)
    return any(
        (left[i] is not full[i] or after[i] is not before[i])
        and not np.array_equal(left[i], before[i])
        for i in range(len(full))
    )


def was_reset(metric: keras.Metric, state: Sequence[Any]) -> list[Any]:
    """Returns a state after a metric's own `reset_state`."""
    mapping = list(zip(metric.variables, state, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        metric.reset_state()
    return [scope.get_current_value(v) for v in metric.variables]


def updated(
    metric: keras.Metric, state: Sequence[Any], calls: Sequence[Call]
) -> list[tf.Tensor]:
    """The state after some updates.

    Args:
        metric: a built metric.
        state: before them.
        calls: the updates.
    """
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
    """Returns a metric's result: a number, an array or a dict of these."""

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
    """Returns a metric's own `additive`; see `trainer.additive`."""
    said = getattr(metric, "additive", None)
    return said if isinstance(said, bool) else None


def is_sum(metric: keras.Metric) -> bool:
    """Whether a metric says that it adds up, or is known to, without a trial.

    Of Keras' own those are, for outputs of rank 2 or more, but for one that
    wraps a function, or reduces an axis that may be the batch's.
    """
    said, kind = declared(metric), type(metric)
    if said is not None:
        return said and not _has_own_reset(metric)
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
