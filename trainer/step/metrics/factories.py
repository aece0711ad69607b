"""Makes metrics from what users give: objects, factories, names, functions."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import keras

from trainer.errors import UserError, did_you_mean
from trainer.step.keras.private import metric_by_shape, object_name
from trainer.values.configurable import call_factory, configurable

# Names whose meaning in Keras depends on targets and outputs.
_BY_SHAPE = ("accuracy", "acc")


def make_metric(factory: Any) -> Any:
    """Makes one metric.

    Args:
        factory: a metric, a function that returns one, the name of either a
            class or a function of `keras.metrics`, or a function of targets
            and outputs.

    Returns:
        The metric; a name that depends on the outputs' shape is returned as
        it is, see `by_shape`.

    Raises:
        UserError: it does not make a metric.
    """
    given = factory
    if factory is None or is_by_shape(factory):
        return factory
    if isinstance(factory, str):
        named = getattr(keras.metrics, given, None)
        with contextlib.suppress(ValueError):
            factory = named or keras.metrics.get(given)
        if isinstance(factory, keras.Metric):
            # Keras logs a metric under the short name it was given by, such as
            # "mae".
            factory.name = given
            return factory
    if callable(factory) and not isinstance(factory, keras.Metric):
        if _is_function_of_values(factory):
            # A factory whose required arguments gin supplies looks like a
            # function of targets and outputs.
            with contextlib.suppress(TypeError):
                made = factory()
                if isinstance(made, keras.Metric):
                    return made
            name = given if isinstance(given, str) else object_name(factory)
            return keras.metrics.MeanMetricWrapper(factory, name=name)
        factory = call_factory(factory)
    if not isinstance(factory, keras.Metric):
        known = [n for n in dir(keras.metrics) if not n.startswith("_")]
        # The short names first: they are also those of classes, in lower case.
        hint = did_you_mean(factory, _BY_SHAPE) or did_you_mean(factory, known)
        raise UserError(
            f"Metric {factory!r} is not a keras.Metric."
            f"{hint} Name the class exactly, such as "
            "SparseCategoricalAccuracy."
        )
    return factory


def _is_function_of_values(function: Any) -> bool:
    """Whether a function takes targets and outputs, or makes a metric."""
    if inspect.isclass(function):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        p
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) >= 2


def is_by_shape(metric: Any) -> bool:
    """Whether it is a name that depends on the shapes of an output."""
    return isinstance(metric, str) and metric in _BY_SHAPE


def by_shape(metric: Any, target: Any, predicted: Any) -> keras.Metric:
    """The metric that "accuracy" means for some shapes, as in `compile`."""
    if not isinstance(metric, str):
        return metric
    if not hasattr(target, "shape") or not hasattr(predicted, "shape"):
        raise UserError(
            f"Metric {metric!r} depends on the shapes of a target and an "
            "output, and here it is not known which. Name the class exactly, "
            "such as SparseCategoricalAccuracy."
        )
    return metric_by_shape(metric, target, predicted)


@configurable(module="trainer")
def additive(metric: Any) -> Callable[[], keras.Metric]:
    """Says of a metric that its state is a sum over examples.

    Training adds up what replicas, micro-batches and steps add to the states
    of metrics. That is so for those of Keras; others are tried before the
    first step. This is for a class that one cannot edit; in a class of one's
    own `additive = True` says the same.

    Args:
        metric: as in `Trainer.metrics`, but no name that depends on shapes,
            such as "accuracy".

    Returns:
        What `Trainer.metrics` takes.
    """

    def make() -> keras.Metric:
        made = make_metric(metric)
        if not isinstance(made, keras.Metric):
            raise UserError(
                f"additive.metric = {metric!r} is not a metric. Give a class "
                "or an object of keras.metrics."
            )
        made.additive = True
        return made

    return make
