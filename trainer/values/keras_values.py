"""Annotations of what is given to a `Trainer`: models, losses, optimizers."""

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import keras
from annotated_types import MinLen, Predicate
from typing_extensions import Doc

from trainer.values.annotations import Natural, NotNegative
from trainer.values.words import Suggest, leaves


def makes(kind: type) -> Predicate:
    """The constraint that a function returns an object of a class.

    Args:
        kind: the class; it may be given itself, or a subclass of it. What
            another function returns is only known when it is called.
    """

    def fits(value: Any) -> bool:
        if inspect.isclass(value):
            return issubclass(value, kind)
        # These can be called, too, but make nothing.
        others = keras.Layer | keras.losses.Loss | keras.Metric
        return not isinstance(value, kind | others)

    return Predicate(fits)


def _each(*kinds: type, fits: Callable[[Any], bool] = callable) -> Predicate:
    """The constraint that each leaf is of a class, or else fits."""

    def is_right(leaf: Any) -> bool:
        if inspect.isclass(leaf):
            return issubclass(leaf, kinds)
        return leaf is None or fits(leaf)

    return Predicate(lambda value: all(map(is_right, leaves(value))))


def _is_loss(leaf: Any) -> bool:
    if not isinstance(leaf, str):
        return callable(leaf)
    if leaf in ("crossentropy", "ce"):  # By the shapes, as in `compile`.
        return True
    try:
        return keras.losses.get(leaf) is not None
    except ValueError:
        return False


def _is_metric(leaf: Any) -> bool:
    return isinstance(leaf, str) or (
        callable(leaf) and not isinstance(leaf, keras.Layer)
    )


def _is_weight(leaf: Any) -> bool:
    is_number = isinstance(leaf, numbers.Real) and not isinstance(leaf, bool)
    return is_number and math.isfinite(leaf)


def _public(module: Any) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def _is_optimizer_name(name: str) -> bool:
    # Not `keras.optimizers.get`, which starts TensorFlow.
    return name.lower() in {
        known.lower()
        for known, member in vars(keras.optimizers).items()
        if inspect.isclass(member)
    }


Callbacks: TypeAlias = Annotated[
    Sequence[keras.callbacks.Callback], Doc("a list of callbacks")
]
MakeModel: TypeAlias = Annotated[
    keras.Model | Annotated[Callable[..., Any], makes(keras.Model)],
    Doc("a keras.Model, or a function that returns one"),
]
Data: TypeAlias = Annotated[
    Any,
    # What can be read is known where it is read.
    Doc(
        "arrays (x, y), a tf.data.Dataset of batches, a dict of these by "
        "split, or a function of the split"
    ),
]
Loss: TypeAlias = Annotated[
    Any,
    _each(keras.losses.Loss, fits=_is_loss),
    Suggest(lambda: _public(keras.losses)),
    Doc(
        "a Keras loss, its name, a function of (y_true, y_pred), or a list or "
        "dict of these"
    ),
]
LossWeights: TypeAlias = Annotated[
    Any, _each(fits=_is_weight), Doc("a number, or a list or dict of numbers")
]
ClassWeight: TypeAlias = Annotated[dict[Natural, NotNegative], MinLen(1)]
_MakeOptimizer: TypeAlias = (
    Annotated[
        str,
        Predicate(_is_optimizer_name),
        Suggest(lambda: [n.lower() for n in _public(keras.optimizers)]),
    ]
    | keras.optimizers.Optimizer
    | Annotated[Callable[..., Any], makes(keras.optimizers.Optimizer)]
)
Optimizer: TypeAlias = Annotated[
    _MakeOptimizer | Annotated[dict[str, _MakeOptimizer], MinLen(1)],
    Doc(
        "a Keras optimizer, a function that returns one, the name of one, or a "
        "dict of these"
    ),
]
Metrics: TypeAlias = Annotated[
    Any,
    _each(keras.Metric, fits=_is_metric),
    Doc(
        "a list of Keras metrics, their classes or names, or a list or dict of "
        "these by output"
    ),
]
