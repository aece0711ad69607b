"""Distinguishes a bad binding from a bug when a constructor fails.

Gin calls a configurable with the bound values. An exception in that call may
be caused by the binding or by the code. Only two cases count as the user's
configuration: a call that does not fit the signature, and a Keras class that
refuses a bound value while no other code runs. Any other exception keeps its
traceback.
"""

import traceback
from types import CodeType, FrameType
from typing import Any

import gin

from trainer.cli.config import gin_private as internals
from trainer.cli.config.errors import sentence
from trainer.cli.config.reader import Origins
from trainer.errors import UserError

_GIN = gin.config.__file__.rpartition("/")[0]
# What Keras calls to check a value; none of it is the user's code.
_LIBRARIES = ("keras", "tensorflow", "numpy", "ml_dtypes")


def user_error_in(error: BaseException, origins: Origins) -> UserError | None:
    """Returns the `UserError` that an exception stands for, if any.

    Args:
        error: the exception from the call of a configurable.
        origins: where each parameter was set.

    Returns:
        `error` itself if it is one, a translation, or `None` for a bug.
    """
    if isinstance(error, UserError):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
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


def _refused(
    error: BaseException, call: FrameType, selector: str, origins: Origins
) -> UserError:
    scopes = (call.f_locals.get("scope_str") or "").split("/")
    given = []
    for name in call.f_locals["gin_bound_args"]:
        value, where = _bound(scopes, selector, name, origins)
        given.append(f"{internals.minimal(selector)}.{name} = {value!r}{where}")
    return UserError(f"{'; '.join(given)}: {sentence(error)}")


def _bound(
    scopes: list[str], selector: str, name: str, origins: Origins
) -> tuple[Any, str]:
    """Returns a parameter's value and origin, from the innermost scope."""
    bound = internals.bindings()
    for count in range(len(scopes), -1, -1):
        scope = "/".join(scopes[:count])
        if name in bound.get((scope, selector), {}):
            where = origins.get((scope, selector, name))
            value = bound[scope, selector][name]
            return value, f" ({where})" if where else ""
    return None, ""


def _is_gin(code: CodeType) -> bool:
    return code.co_filename.startswith(_GIN)


def _is_gin_call(code: CodeType) -> bool:
    # The function by which gin replaces each configurable.
    return _is_gin(code) and code.co_name == "gin_wrapper"


def _only_libraries(frames: list[FrameType]) -> bool:
    return all(
        frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES
        for frame in frames
    )
