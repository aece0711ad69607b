"""Raises mistakes of the user without the frames that found them.

A sentence is what helps, or the user's own frames where their code has raised.
Those in between would be ours, gin's, Keras' and AutoGraph's: some hundred
lines, of which a notebook shows every one. A `UserError` has the original one
as its `__context__`.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from trainer.errors import UserError
from trainer.runtime.user_frames import only_users

C = TypeVar("C", bound=type)

# Set to anything, every frame is shown.
VARIABLE = "TRAINER_FULL_TRACEBACK"
# What gin adds to the message of an error.
_OF_GIN = "\n  In call to configurable"
_BRIEF = "__is_brief__"
_state = {"is_on": True}


def turn_off() -> None:
    """Leaves errors as they are: the command line reads their frames."""
    _state["is_on"] = False


def brief_errors(*names: str) -> Callable[[C], C]:
    """A class decorator: these methods raise a `UserError` briefly."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _brief(getattr(cls, name)))
        return cls

    return decorate


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except UserError as error:
            if not _state["is_on"] or os.environ.get(VARIABLE):
                raise
            # From a method that this one has called.
            if hasattr(error, _BRIEF):
                raise error.with_traceback(None) from None
            short = UserError(str(error).partition(_OF_GIN)[0])
            setattr(short, _BRIEF, True)
            raise short from None
        except Exception as error:
            if not _state["is_on"] or os.environ.get(VARIABLE):
                raise
            _shorten(error)
            raise

    return call


def _shorten(error: BaseException) -> None:
    """Leaves an exception, and those before it, with the user's frames."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = only_users(one.__traceback__)
        one = one.__cause__ or one.__context__
    if not hasattr(error, _BRIEF):
        setattr(error, _BRIEF, True)
        error.add_note(f"Only your own frames are shown; {VARIABLE}=1: all.")
