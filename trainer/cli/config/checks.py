"""Checks all that a configuration sets, before anything is built.

What a configurable of ours may be given, its annotations say, and those of
Keras `trainer.cli.config.keras_names`. What a function returns is only known
when gin calls it: `trainer.values.configurable` checks it then.
"""

from typing import Any

from gin.config import ConfigurableReference, iterate_references

from trainer.cli.config.gin_private import (
    BOUND,
    MACRO,
    REGISTRY,
    Key,
    Origins,
    enclosing,
)
from trainer.cli.config.keras_names import types_of_keras
from trainer.cli.config.names import minimal
from trainer.errors import BadValue, UserError, did_you_mean
from trainer.values.checks import check as check_value
from trainer.values.configurable import types_of


def check(origins: Origins) -> None:
    """Refuses macros that are not defined, circles, and wrong values.

    Gin notices the first without the line, and the others never.

    Args:
        origins: where each parameter was set.

    Raises:
        UserError: there is one; it says where.
    """
    for (scope, selector), values in BOUND.items():
        for name, value in values.items():
            place = origins.get((scope, selector, name), "gin")
            for reference in iterate_references(value):
                _check_macro(reference.config_key, place)
    seen: set[Key] = set()
    for key in BOUND:
        _check_circle(key, origins, (), seen)
    for (scope, selector), values in BOUND.items():
        target = REGISTRY[selector].wrapped
        types = types_of(target) or {}
        if selector.startswith("keras."):
            types = types_of_keras(target)
        owner = f"{scope}/{minimal(selector)}" if scope else minimal(selector)
        for name, value in values.items():
            try:
                if name in types:
                    check_value(owner, name, _resolved(value), types[name])
            except LookupError:
                continue
            except BadValue as error:
                where = origins.get((scope, selector, name))
                raise located(error, owner, where) from None


def binding(owner: str, name: str, value: str, where: str | None) -> str:
    """Returns a binding as messages show it, with its place if known."""
    place = f" ({where})" if where else ""
    return f"{owner}.{name} = {value}{place}"


def located(error: BadValue, owner: str, where: str | None) -> UserError:
    """Returns the error with the name and the place of the binding."""
    shown = binding(owner, error.parameter, error.value, where)
    return UserError(f"{shown} {error.wanted}")


def _check_macro(key: Key, where: str) -> None:
    if key[1] == MACRO and key not in BOUND:
        macros = [scope for scope, selector in BOUND if selector == MACRO]
        raise UserError(
            f"{where}: the macro %{key[0]} is not defined."
            f"{did_you_mean(key[0], macros, prefix='%')}"
        )


def _check_circle(
    key: Key, origins: Origins, above: tuple[Key, ...], seen: set[Key]
) -> None:
    """Refuses a value that needs itself, through those `above`."""
    if key in above:
        circle = [*above[above.index(key) :], key]
        where = next((origins[one] for one in origins if one[:2] in circle), "")
        shown = " -> ".join(map(_as_written, circle))
        raise UserError(f"{where}: it needs itself: {shown}.")
    if key in seen:
        return
    seen.add(key)
    scope, selector = key
    # A call in a scope takes what is set there, else further outside.
    values: dict[str, Any] = {}
    for outer in enclosing(scope):
        values |= BOUND.get((outer, selector), {})
    for one in iterate_references(values):
        if one.evaluate:
            inner, needed = one.config_key
            called = inner or scope, needed
            _check_circle(called, origins, (*above, key), seen)


def _as_written(key: Key) -> str:
    scope, selector = key
    if selector == MACRO:
        return f"%{scope}"
    return f"@{scope}/{minimal(selector)}()".replace("@/", "@")


def _resolved(value: Any) -> Any:
    """Returns a value with what gin puts in place of references.

    Raises:
        LookupError: that is only known once it is called.
    """
    if isinstance(value, dict):
        return {_resolved(k): _resolved(one) for k, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_resolved, value))
    if not isinstance(value, ConfigurableReference):
        return value
    if value.config_key[1] == MACRO:
        return _resolved(BOUND[value.config_key]["value"])
    if value.evaluate:
        raise LookupError(value)
    return value.configurable.wrapped
