"""Metrics that layers update in their `call`.

On several replicas, and where a step is a pure function of its input, a
layer cannot update the metric's variables itself. While a step is traced, its
calls of `update_state` are noted instead, and the step treats them as it
treats the metrics of outputs.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.context import current_graph, step_context
from trainer.step.keras.private import layer_metrics
from trainer.step.metrics.states import Call


class LayerMetrics:
    """Takes over the metrics in a model's layers.

    Args:
        model: the built model.

    Attributes:
        all: these metrics.
    """

    def __init__(self, model: keras.Model) -> None:
        found = layer_metrics(model)
        self.all = [metric for _, metric in found]
        for layer, metric in found:
            _take_over(metric, layer.name)

    @contextlib.contextmanager
    def listening(self) -> Iterator[dict[int, list[Call]]]:
        """Notes calls, by the id of their metric, on this replica."""
        calls: dict[int, list[Call]] = {id(one): [] for one in self.all}
        with step_context.within(metric_calls=calls, graph=current_graph()):
            yield calls


def _take_over(metric: keras.Metric, layer: str) -> None:
    own_update, own_result = metric.update_state, metric.result

    def update_state(*arguments: Any, **options: Any) -> None:
        calls = step_context.metric_calls
        # Outside a step, such as in predict; and in `states.updated`, which
        # needs the metric's own update.
        if calls is None:
            own_update(*arguments, **options)
            return
        for leaf in tf.nest.flatten([arguments, options]):
            is_symbolic = tf.is_tensor(leaf) and not tf.executing_eagerly()
            graph = getattr(leaf, "graph", None) if is_symbolic else None
            # A tensor of a graph that a step only calls is of no use to it.
            if graph not in (None, step_context.graph):
                raise UserError(
                    f"The layer {layer!r} updates its metric {metric.name!r} "
                    "inside a loop, a condition or a tf.function. Update it "
                    "once in call, outside of these."
                )
        calls[id(metric)].append(Call(arguments, options))

    def result() -> Any:
        if step_context.metric_calls is None:
            return own_result()
        return _NotYet(layer, metric.name)

    # Not through Keras' own __setattr__, which would track functions.
    object.__setattr__(metric, "update_state", update_state)
    object.__setattr__(metric, "result", result)


class _NotYet:
    """Stands for a metric's result inside a step, where it is not known.

    Calling a metric returns its result, which most layers do not use.
    """

    def __init__(self, layer: str, metric: str) -> None:
        self._why = (
            f"The layer {layer!r} uses the result of its metric {metric!r} "
            "inside a step, where it is not known: it depends on other "
            "replicas and steps. Read it from the logs."
        )

    def __repr__(self) -> str:
        return self._why

    def __getattr__(self, name: str) -> Any:
        # Python and TensorFlow look up such names to find out what it is.
        if name.startswith("_"):
            raise AttributeError(name)
        raise UserError(self._why)

    def _refuse(self, *_: Any) -> Any:
        raise UserError(self._why)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __neg__ = __float__ = __array__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __bool__ = _refuse
