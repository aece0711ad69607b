"""Distinguishes a bad binding from a bug when a constructor fails.

Gin calls a configurable with the bound values, and says in the message of an
exception which calls it went through. Only three cases count as the user's
configuration: a value that an annotation excludes, a call that does not fit the
signature, and a Keras class that refuses bound values while no other code runs.
Any other exception keeps its traceback.
"""

import re
import traceback
from collections.abc import Iterator
from typing import Any

import gin

from trainer.cli.config.checks import binding, located
from trainer.cli.config.gin_private import (
    BOUND,
    Key,
    Origins,
    enclosing,
)
from trainer.cli.config.names import minimal, sentence
from trainer.errors import BadValue, UserError
from trainer.values import configurable
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
                refers = any(gin.config.iterate_references(bound))
                # What a subclass passes on was bound further outside.
                if refers or shown(bound) == error.value:
                    where = origins.get((*key, error.parameter))
                    return located(error, minimal(key[1]), where)
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
            binding(
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
