"""Raises mistakes of the user without the frames that found them.

The error message is enough. The frames in between would be ours, gin's, Keras'
and AutoGraph's: some hundred lines.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from trainer.errors import UserError

C = TypeVar("C", bound=type)

# What gin adds to the message of an error.
_OF_GIN = "\n  In call to configurable"
_state = {"is_on": True}


def turn_off() -> None:
    """Leaves errors as they are: the command line reads what gin adds."""
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
            if not _state["is_on"]:
                raise
            # The error itself is the `__context__` of this one.
            raise UserError(str(error).partition(_OF_GIN)[0]) from None

    return call
