"""Callbacks as they are given in Python, and those that are there anyway."""

import inspect
from typing import Any

import keras

from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.python.history import History
from trainer.step.keras.private import trained_by
from trainer.strategy.registry import load_plugins
from trainer.values.words import shown


class FinalValues(Callback):
    """Lets optimizers give weights their last values when `fit` ends."""

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """As Keras does, before any other callback."""
        for one in self.run.parts.optimizers.values():
            one.finalize_variable_values(trained_by(one))


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


def of_training(
    given: Any, own: History, *, fit: Any, verbose: Any
) -> list[keras.callbacks.Callback]:
    """The callbacks of a call that trains.

    Args:
        given: see `as_callbacks`.
        own: notes the epochs.
        fit: `None` if it is not `fit`.
        verbose: whether to add those that are there by default; see
            `Callback`.
    """
    called = as_callbacks(given)
    missing = [
        plugin()
        for plugin in load_plugins().values()
        if verbose
        and getattr(plugin, "by_default", False)
        and not any(isinstance(one, plugin) for one in called)
    ]
    ends = [] if fit is None else [FinalValues()]
    return [*ends, *called, *missing, own]
