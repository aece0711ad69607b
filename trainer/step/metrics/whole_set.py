"""Metrics over a whole evaluation set: functions of all predictions.

Each step of an evaluation gathers its global batch, in the order of the
examples and without padding, and hands it to the host of every process. The
function is then called once, with all of it, so that its value depends neither
on the strategy nor on the size of batches.
"""

import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.metrics.states import VALUES, Call
from trainer.values.annotations import Text
from trainer.values.configurable import configurable

_WEIGHTS = "sample_weight"


@configurable(module="trainer")
class WholeSetMetric(keras.Metric):
    """A function of all targets and predictions of an evaluation set.

    For what is not a mean over examples: a rank correlation, BLEU, a Fréchet
    distance, retrieval. It is measured in evaluations only, exactly under
    every strategy: each example once, in the order of the data.

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


class WholeSet:
    """What a metric has been given so far, in place of a state.

    Args:
        metric: what is measured.
    """

    prefix: ClassVar[str] = VALUES
    variables: tuple[tf.Variable, ...] = ()

    def __init__(self, metric: WholeSetMetric) -> None:
        self._metric = metric
        self._batches: list[list[np.ndarray]] = []
        self._structure: Any = None
        self.dtypes: list[tf.DType] = []

    def of(self, calls: Sequence[Call]) -> list[tf.Tensor]:
        """The tensors of a replica's call, in the form `update` takes."""
        (call,) = calls
        takes = self._metric.takes_weights
        weight = call.options.get(_WEIGHTS) if takes else None
        parts = (*call.arguments, weight)
        leaves = [
            _widened(tf.convert_to_tensor(part))
            for part in tf.nest.flatten(parts)
            if part is not None
        ]
        # Only which parts there are: tensors would keep the graph alive.
        self._structure = tf.nest.map_structure(
            lambda part: None if part is None else ..., parts
        )
        self.dtypes = [leaf.dtype for leaf in leaves]
        return leaves

    def update(
        self, kept_for: Sequence[str], leaves: Sequence[tf.Tensor]
    ) -> None:
        """Takes a global batch, in cross-replica context."""
        # Stateful, so that batches come in the order of the steps.
        tf.numpy_function(self._take, list(leaves), Tout=[])

    def result(self, kept_for: str, total: Any = None) -> float | None:
        """What the function makes of all batches; `None` without one.

        Raises:
            UserError: it returns no number, or batches differ in shape.
        """
        if not self._batches:
            return None
        columns = map(self._joined, zip(*self._batches, strict=True))
        y, y_pred, weight = tf.nest.map_structure(
            lambda part: None if part is None else next(columns),
            self._structure,
        )
        options = {}
        if self._metric.takes_weights:
            rows = len(tf.nest.flatten(y_pred)[0])
            ones = np.ones(rows, "float32")
            options = {_WEIGHTS: ones if weight is None else weight}
        found = self._metric.function(y, y_pred, **options)
        is_number = np.ndim(found) == 0 and isinstance(
            np.asarray(found).item(), numbers.Real
        )
        if not is_number:
            raise UserError(
                f"The metric {self._metric.name!r} returned a "
                f"{type(found).__name__}. Return a number; for several, give "
                "several metrics."
            )
        return float(found)

    def reset(self, kept_for: str) -> None:
        """Forgets all batches."""
        self._batches = []

    def _take(self, *leaves: np.ndarray) -> None:
        # Copied: TensorFlow owns what it passes.
        self._batches.append([np.array(leaf) for leaf in leaves])

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        shapes = sorted({part.shape[1:] for part in parts})
        if len(shapes) > 1:
            raise UserError(
                f"The metric {self._metric.name!r} gets batches of different "
                f"shapes: [batch, *{shapes[0]}] and [batch, *{shapes[1]}]. Pad "
                "the data, so that all examples have one shape."
            )
        return np.concatenate(parts)


def _widened(leaf: tf.Tensor) -> tf.Tensor:
    # As Keras' metrics do: NumPy would sum float16 in float16.
    narrow = leaf.dtype.is_floating and leaf.dtype.size < 4
    return tf.cast(leaf, tf.float32) if narrow else leaf
