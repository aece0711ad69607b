"""Names the binding that is wrong, with its place.

`check` looks at all that a configuration sets, before anything is built. The
annotations of our configurables say which values are valid, and
`trainer.cli.config.keras_names` says it for those of Keras.

A function's result is only known when gin calls it, and
`trainer.values.configurable` checks it then. `user_error_in` finds out whether
the configuration is to blame for what such a call raises. Only three cases are:
a value that an annotation excludes, a call that does not fit the signature, and
a Keras class that refuses bound values while no other code runs. Any other
exception keeps its traceback.
"""

import re
import traceback
from collections.abc import Iterator
from typing import Any

import gin
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
from trainer.cli.config.names import minimal, sentence
from trainer.errors import BadValue, UserError, did_you_mean
from trainer.values import configurable
from trainer.values.checks import check as check_value
from trainer.values.words import shown

# The innermost call comes first.
_CALL = re.compile(
    r"In call to configurable '(.+?)' \((.+)\)(?: in scope '(.+)')?$",
    re.MULTILINE,
)
# Gin, and our checks, which are called between gin and the configurable.
_BETWEEN = (gin.config.__file__.rpartition("/")[0], configurable.__file__)
_NOTHING = object()
# What Keras calls to check a value; none of it is the user's code.
_LIBRARIES = ("keras", "tensorflow", "numpy", "ml_dtypes")


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
        types = configurable.types_of(target) or {}
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
                raise _located(error, owner, where) from None


def _binding(owner: str, name: str, value: str, where: str | None) -> str:
    """Returns a binding as messages show it, with its place if known."""
    place = f" ({where})" if where else ""
    return f"{owner}.{name} = {value}{place}"


def _located(error: BadValue, owner: str, where: str | None) -> UserError:
    """Returns the error with the name and the place of the binding."""
    bound = _binding(owner, error.parameter, error.value, where)
    return UserError(f"{bound} {error.wanted}")


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
        written = " -> ".join(map(_as_written, circle))
        raise UserError(f"{where}: it refers to itself: {written}.")
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


def user_error_in(error: BaseException, origins: Origins) -> UserError | None:
    """Returns the `UserError` that an exception stands for, if any.

    Returns:
        `error` itself if it is one, a translation, or `None` for a bug.
    """
    calls = [(name, scope) for name, _, scope in _CALL.findall(str(error))]
    if isinstance(error, BadValue):
        for name, scope in calls:
            for key, values in _bound(name, scope):
                bound = values.get(error.parameter, _NOTHING)
                refers = any(iterate_references(bound))
                # What a subclass passes on was bound further outside.
                if refers or shown(bound) == error.value:
                    where = origins.get((*key, error.parameter))
                    return _located(error, minimal(key[1]), where)
        return error
    if isinstance(error, UserError):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    between = [f.f_code.co_filename.startswith(_BETWEEN) for f in frames]
    if True not in between:
        return None
    # The innermost call is the one that failed; outer ones only wanted its
    # result as an argument.
    inside = frames[len(frames) - between[::-1].index(True) :]
    # TypeError: the call does not fit the signature. RuntimeError: gin's own,
    # for a parameter that is `gin.REQUIRED` and not bound.
    if not inside and isinstance(error, TypeError | RuntimeError):
        return UserError(sentence(error))
    of_libraries = all(
        frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES
        for frame in inside
    )
    if calls and of_libraries:
        given = [
            _binding(
                minimal(key[1]), name, repr(value), origins.get((*key, name))
            )
            for key, values in _bound(*calls[0])
            for name, value in values.items()
            if key[1].startswith("keras.")
        ]
        if given:
            return UserError(f"{'; '.join(given)}: {sentence(error)}")
    return None


def _bound(name: str, scope: str) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yields what is bound for a call, from the innermost scope outwards."""
    for outer in reversed(enclosing(scope)):
        for key, values in BOUND.items():
            if key[0] == outer and key[1].split(".")[-1] == name:
                yield key, values
