"""Keras' classes in a gin file: their names and valid arguments.

They need no import line: `@Adam`, `@losses.MeanSquaredError` and
`@keras.layers.Dense`. The classes are unchanged: gin's
`external_configurable` wraps the call, not the class, so that instances keep
their type, name and serialization. (`gin.configurable` would replace
`__init__`, which breaks Keras layers.)
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Annotated, Any, TypeAlias

import gin
import keras
from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from trainer.cli.config.names import parameters_of
from trainer.values.annotations import Finite, NotNegative, Text

_MODULES: dict[str, ModuleType] = {
    "keras.callbacks": keras.callbacks,
    "keras.initializers": keras.initializers,
    "keras.layers": keras.layers,
    "keras.losses": keras.losses,
    "keras.metrics": keras.metrics,
    "keras.optimizers": keras.optimizers,
    "keras.optimizers.schedules": keras.optimizers.schedules,
    "keras.regularizers": keras.regularizers,
}
# In a gin file these names mean the plugins: Keras' own are KerasEarlyStopping
# and KerasTensorBoard there.
_OURS = (keras.callbacks.EarlyStopping, keras.callbacks.TensorBoard)

_Positive: TypeAlias = Annotated[float, Gt(0), Le(1e38)]
_Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
_Decay: TypeAlias = Annotated[float, Ge(0), Lt(1)]
# Keras has no annotations, checks some values late and others never. Whatever
# the class: what a parameter with such a name may be.
_RANGES: dict[str, Any] = {
    "beta_1": _Decay,
    "beta_2": _Decay,
    "clipnorm": _Positive | None,
    "clipvalue": _Positive | None,
    "ema_momentum": _Share,
    "epsilon": NotNegative | None,
    "global_clipnorm": _Positive | None,
    "initial_learning_rate": NotNegative,
    "label_smoothing": _Share,
    "learning_rate": NotNegative | Callable[..., Any],
    "momentum": _Share,
    "name": Text | None,
    # It may also be a range of steps, "10,20".
    "profile_batch": Any,
    "rho": _Decay,
    # Keras takes True for 1.
    "verbose": Any,
    "weight_decay": NotNegative | bool | None,
}
_Numbers: TypeAlias = Annotated[
    Finite | list[Any] | tuple[Any, ...] | None, Doc("a number")
]
# By the type of the default. A default of another type says little: Keras takes
# a number, a name, a function or an object for many a string.
_KINDS: dict[type, Any] = {bool: bool, int: _Numbers, float: _Numbers}


# Gin refuses to register a name a second time.
@functools.cache
def register_keras() -> None:
    """Registers every public Keras class once, under its public module."""
    for module_name, module in _MODULES.items():
        for name, member in _public(module):
            gin.external_configurable(member, name=name, module=module_name)


def _public(module: ModuleType) -> Iterator[tuple[str, type]]:
    """Yields each class once, under its own name if possible.

    Functions are left out: a layer accepts an activation by its name, and
    `linear` or `softmax` would collide with a user's own functions.
    """
    for name, member in sorted(vars(module).items()):
        if name.startswith("_") or not inspect.isclass(member):
            continue
        # Keras exports some classes twice, such as `Conv2D` and
        # `Convolution2D`; gin would list both as candidates for a name.
        own_name = member.__name__
        if name == own_name or getattr(module, own_name, None) is not member:
            yield f"Keras{name}" if member in _OURS else name, member


@functools.cache
def types_of_keras(target: type) -> dict[str, Any]:
    """Returns annotations for what a class of Keras is given."""
    names, _ = parameters_of(target)
    hints = {name: _RANGES[name] for name in names if name in _RANGES}
    for name, parameter in inspect.signature(target).parameters.items():
        kind = type(parameter.default)
        if kind in _KINDS:
            hints.setdefault(name, _KINDS[kind])
    return hints
