"""Callbacks as they are given in Python, and those that are there anyway."""

import inspect
from typing import Any

import keras

from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.strategy.registry import load_plugins
from trainer.values.words import shown


def as_callbacks(given: Any) -> list[keras.callbacks.Callback]:
    """A list of callbacks from a list, a single one or `None`.

    Raises:
        UserError: an entry is not a callback, or cannot work here.
    """
    if isinstance(given, keras.callbacks.CallbackList):
        given = given.callbacks
    if given is None:
        return []
    listed = list(given) if isinstance(given, list | tuple) else [given]
    for number, one in enumerate(listed):
        if isinstance(one, keras.callbacks.Callback):
            continue
        what = f"callbacks[{number}] = {shown(one)}"
        if inspect.isclass(one) and issubclass(one, keras.callbacks.Callback):
            raise UserError(
                f"{what} is a class: write {one.__name__}(), with parentheses."
            )
        raise UserError(
            f"{what} is not a callback. Valid: objects of keras.callbacks.* "
            "or of subclasses of trainer.Callback."
        )
    return listed


def with_defaults(
    callbacks: list[keras.callbacks.Callback],
) -> list[keras.callbacks.Callback]:
    """Adds those that a run from Python has by default; see `Callback`."""
    kinds = [
        plugin
        for plugin in load_plugins().values()
        if inspect.isclass(plugin)
        and issubclass(plugin, Callback)
        and plugin.by_default
    ]
    missing = [
        kind()
        for kind in kinds
        if not any(isinstance(one, kind) for one in callbacks)
    ]
    return [*callbacks, *missing]
