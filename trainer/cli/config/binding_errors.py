"""Distinguishes a bad binding from a bug when a constructor fails.

Gin calls a configurable with the bound values. An exception in that call may
be caused by the binding or by the code. Only three cases count as the user's
configuration: a value that a configurable's annotation excludes, a call that
does not fit the signature, and a Keras class that refuses a bound value while
no other code runs, at once or when a step is traced. Any other exception keeps
its traceback.
"""

import re
import traceback
from types import CodeType, FrameType
from typing import Any

import gin

from trainer.cli.config import gin_private as internals
from trainer.cli.config.errors import sentence
from trainer.cli.config.gin_private import Origins
from trainer.cli.config.values import binding, located
from trainer.errors import BadValue, UserError
from trainer.values import configurable

_GIN = gin.config.__file__.rpartition("/")[0]
# What Keras calls to check a value; none of it is the user's code.
_LIBRARIES = ("keras", "tensorflow", "numpy", "ml_dtypes")


def user_error_in(error: BaseException, origins: Origins) -> UserError | None:
    """Returns the `UserError` that an exception stands for, if any.

    Returns:
        `error` itself if it is one, a translation, or `None` for a bug.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, BadValue):
        return _located(error, frames, origins)
    if isinstance(error, UserError):
        return error
    used = _refused_in_use(error, frames, origins)
    if used is not None:
        return used
    calls = [i for i, frame in enumerate(frames) if _is_gin_call(frame.f_code)]
    if not calls:
        return None
    # The innermost call is the one that failed; outer ones only wanted its
    # result as an argument.
    call = frames[calls[-1]]
    inside = [f for f in frames[calls[-1] + 1 :] if not _is_gin(f.f_code)]
    # Gin's wrapper keeps the selector and the bound values in local variables;
    # the exception itself has neither.
    selector = call.f_locals.get("current_selector")
    if selector is None:
        return None
    # TypeError: the call does not fit the signature. RuntimeError: gin's own,
    # for a parameter that is `gin.REQUIRED` and not bound.
    if not inside and isinstance(error, TypeError | RuntimeError):
        return UserError(f"{internals.minimal(selector)}: {sentence(error)}")
    bound = call.f_locals.get("gin_bound_args")
    if bound and selector.startswith("keras.") and _only_libraries(inside):
        return _refused(error, call, selector, origins)
    return None


def _refused_in_use(
    error: BaseException, frames: list[FrameType], origins: Origins
) -> UserError | None:
    """Returns the error of a Keras object that cannot use a bound value.

    Only if the message shows the value: what is bound need not be at fault.
    """
    for frame in reversed(frames):
        if not _only_libraries([frame]):
            return None
        selector = internals.selector_of(type(frame.f_locals.get("self")))
        if selector is None or not selector.startswith("keras."):
            continue
        for (scope, bound_in), values in internals.bindings().items():
            for name, value in values.items():
                if bound_in == selector and _is_in(value, str(error)):
                    where = origins.get((scope, selector, name))
                    owner = internals.minimal(selector)
                    shown = binding(owner, name, repr(value), where)
                    why = f"cannot be used: {sentence(error)}"
                    return UserError(f"{shown} {why}")
    return None


def _is_in(value: Any, message: str) -> bool:
    """Whether a message shows a value, or the name of a reference's target."""
    references = list(internals.references([value]))
    texts = [one.config_key[1].split(".")[-1] for one in references]
    if not texts:
        texts = [repr(value)]
    return any(
        re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message) for text in texts
    )


def _located(
    error: BadValue, frames: list[FrameType], origins: Origins
) -> UserError:
    """Returns the error under the name by which the value was bound."""
    name = error.parameter
    for call in reversed([f for f in frames if _is_gin_call(f.f_code)]):
        given = call.f_locals
        # What the caller has passed may come from a call further outside, such
        # as of a subclass.
        if name in given["arg_names"] or name in given["kwargs"]:
            continue
        if name not in given["gin_bound_args"]:
            return error
        selector = given["current_selector"]
        _, where = _bound(given["scope_str"], selector, name, origins)
        return located(error, internals.minimal(selector), where)
    return error


def _refused(
    error: BaseException, call: FrameType, selector: str, origins: Origins
) -> UserError:
    given = []
    for name in call.f_locals["gin_bound_args"]:
        value, where = _bound(
            call.f_locals["scope_str"], selector, name, origins
        )
        owner = internals.minimal(selector)
        given.append(binding(owner, name, repr(value), where))
    return UserError(f"{'; '.join(given)}: {sentence(error)}")


def _bound(
    scope: str, selector: str, name: str, origins: Origins
) -> tuple[Any, str | None]:
    """Returns a parameter's value and origin, from the innermost scope."""
    bound = internals.bindings()
    for outer in reversed(internals.enclosing(scope)):
        if name in bound.get((outer, selector), {}):
            where = origins.get((outer, selector, name))
            return bound[outer, selector][name], where
    return None, None


def _is_gin(code: CodeType) -> bool:
    # And our checks, which are called between gin and the configurable.
    return code.co_filename.startswith((_GIN, configurable.__file__))


def _is_gin_call(code: CodeType) -> bool:
    # The function by which gin replaces each configurable.
    return _is_gin(code) and code.co_name == "gin_wrapper"


def _only_libraries(frames: list[FrameType]) -> bool:
    return all(
        frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES
        for frame in frames
    )
