"""Checks every value that a configuration sets, before anything is built.

What a configurable of ours may be given, its annotations say. Those of Keras
have none: there the kind of a parameter's default counts, and for names that
mean the same in all classes a range. Keras itself checks some values late, and
others never.

What a function returns is only known when gin calls it.
`trainer.values.configurable` checks it then.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import gin
from annotated_types import Ge, Gt, Le, Lt
from gin.config import ConfigurableReference
from typing_extensions import Doc

from trainer.cli.config import gin_private as internals
from trainer.cli.config.gin_private import Origins
from trainer.errors import BadValue, UserError
from trainer.values.annotations import Finite, NotNegative, Text
from trainer.values.configurable import Checks, refusal

_Positive: TypeAlias = Annotated[float, Gt(0), Le(1e38)]
_Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
_Decay: TypeAlias = Annotated[float, Ge(0), Lt(1)]
# Whatever the class: what a parameter with such a name may be.
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
_LearningRate: TypeAlias = NotNegative | Callable[..., Any]
# By the type of the default. A default of another type says little: Keras takes
# a number, a name, a function or an object for many a string.
_KINDS: dict[type, Any] = {bool: bool, int: _Numbers, float: _Numbers}


def check_values(origins: Origins) -> None:
    """Refuses values that a parameter cannot have.

    Raises:
        UserError: there is one.
    """
    bound = internals.bindings()
    for (scope, selector), values in bound.items():
        checks = checks_of(selector)
        for name, value in values.items():
            if checks is None or name not in checks.types:
                continue
            try:
                value = _known(value, bound)
            except LookupError:
                continue
            if not checks.admits(name, value):
                where = origins.get((scope, selector, name))
                owner = internals.minimal(selector)
                owner = f"{scope}/{owner}" if scope else owner
                raise located(
                    refusal(owner, name, value, checks.types[name]),
                    owner,
                    where,
                )


def located(error: BadValue, owner: str, where: str | None) -> UserError:
    """Returns the error with the name and the place of the binding."""
    shown = binding(owner, error.parameter, error.value, where)
    return UserError(f"{shown} {error.wanted}")


def binding(owner: str, name: str, value: str, where: str | None) -> str:
    """Returns a binding as messages show it, with its place if known."""
    place = f" ({where})" if where else ""
    return f"{owner}.{name} = {value}{place}"


def checks_of(selector: str) -> Checks | None:
    """Returns the checks of a configurable's values, if it has some."""
    target = internals.wrapped(selector)
    checks = Checks.of(target)
    if checks is None and selector.startswith("keras."):
        return _checks_of_keras(target)
    return checks


@functools.cache
def _checks_of_keras(target: type) -> Checks:
    names, _ = internals.parameters_of(target)
    hints = {name: _RANGES[name] for name in names if name in _RANGES}
    for name, parameter in inspect.signature(target).parameters.items():
        kind = type(parameter.default)
        if name == "learning_rate":
            hints[name] = _LearningRate
        elif kind in _KINDS:
            hints.setdefault(name, _KINDS[kind])
    return Checks(target.__name__, lambda: hints)


def _known(value: Any, bound: internals.Bindings) -> Any:
    """Returns a value in which references are what gin will put there.

    In place of an object there is one of its class that was never initialized.

    Raises:
        LookupError: that is not known.
    """
    if isinstance(value, dict):
        return {
            _known(key, bound): _known(one, bound) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_known(one, bound) for one in value)
    # Gin itself says so where it is needed.
    if value is gin.REQUIRED:
        raise LookupError
    if not isinstance(value, ConfigurableReference):
        return value
    scope, selector = value.config_key
    if selector == internals.MACRO:
        return _known(bound[scope, selector]["value"], bound)
    target = internals.wrapped(selector)
    if internals.stands_in(target):
        raise LookupError(selector)
    if not value.evaluate:
        return target
    try:
        return object.__new__(target)
    except TypeError:
        raise LookupError(selector) from None
