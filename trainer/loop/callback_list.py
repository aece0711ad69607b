"""Calls callbacks in order, and closes all of them whatever happens."""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from absl import logging

from trainer.checkpoint import keras_callbacks
from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.loop.monitor import Monitor
from trainer.loop.run import Run
from trainer.runtime.process_exit import headline
from trainer.runtime.schema import Misfit

# Callbacks of Keras that need its own fit, and what a run has in their place.
_REFUSED = {
    # It tells the model where to go on, and not the Trainer: epochs that are
    # done would be trained again.
    keras.callbacks.BackupAndRestore: (
        "resumes only Keras' own fit. For a run that resumes, use the callback "
        "Checkpoint; in Python, call train('3 epochs', model_dir='run', "
        "callbacks=[Checkpoint()])."
    ),
    keras.callbacks.SwapEMAWeights: (
        "reads averages of Keras' optimizers, which nothing else here would. "
        "Set Trainer.ema_momentum: evaluations, exports and saved models have "
        "the averaged weights then."
    ),
}


class CallbackList:
    """The callbacks of a run: the given order, savers last.

    Args:
        callbacks: ours, or any `keras.callbacks.Callback`.
        run: handed to each callback, and its model to Keras' own.

    Raises:
        UserError: there are two of a class that may be there once, or one
            that works only in Keras' own fit.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        run: Run,
    ) -> None:
        for one in callbacks:
            for kind, why in _REFUSED.items():
                if isinstance(one, kind):
                    raise UserError(f"{type(one).__name__} {why}")
        single = [type(c) for c in callbacks if getattr(c, "single", False)]
        for kind in single:
            if single.count(kind) > 1:
                raise UserError(
                    f"run.callbacks has {single.count(kind)} {kind.__name__} "
                    "callbacks, which would get in each other's way. Keep one."
                )
        # A stable sort: apart from savers, the user's order is kept.
        self.all = sorted(callbacks, key=_runs_last)
        self.ours = [c for c in self.all if isinstance(c, Callback)]
        for callback in self.ours:
            callback.run = run
        # Restored states of Keras' callbacks, until `on_train_begin` is over.
        self._waiting: dict[str, dict[str, Any]] = {}
        # Values for each batch are only computed if a callback may read them.
        self.wants_batch_logs = any(map(_reads_batches, self.all))

    def attach(self, model: keras.Model, params: dict[str, Any]) -> None:
        """Gives every callback the model, as `fit` does."""
        for callback in self.all:
            _choose_mode(callback)
            callback.set_model(model)
            callback.set_params(params)

    def call(self, event: str, *arguments: Any) -> None:
        """Calls an event of every callback that has it."""
        for callback in self.all:
            # Keras' callbacks do not have our events.
            method = getattr(callback, event, None)
            if method is not None:
                method(*arguments)

    def call_savers(self, event: str, *arguments: Any) -> None:
        """Calls an event of the callbacks that save."""
        # Ours, so they have all events.
        for callback in filter(_runs_last, self.all):
            getattr(callback, event)(*arguments)

    @property
    def save(self) -> bool:
        """Whether any callback saves."""
        return any(map(_runs_last, self.all))

    def have(self, event: str) -> bool:
        """Whether any callback does something in an event."""
        return any(has_event(callback, event) for callback in self.all)

    def keras_has(self, event: str) -> bool:
        """Whether a callback of Keras' kind does something in an event."""
        return any(
            has_event(callback, event)
            for callback in self.all
            if not isinstance(callback, Callback)
        )

    @property
    def batch_events(self) -> Callable[..., None] | None:
        """`call`, if any callback looks at single batches of evaluations."""
        looks = map(self.have, ("on_test_batch_begin", "on_test_batch_end"))
        return self.call if any(looks) else None

    def repeat(self, event: str, *arguments: Any) -> None:
        """Calls an event a second time, and sets states back afterwards."""
        # A callback may return an object that it changes in the event.
        states = copy.deepcopy(self.states())
        self.call(event, *arguments)
        keyed = self._keyed()
        self.load_states(
            {k: s for k, s in states.items() if has_event(keyed[k], event)}
        )
        self.give_states()

    def next_due(self, step: int) -> int | None:
        """The first step at which a callback must act."""
        due = [c.next_due(step) for c in self.ours]
        return min((d for d in due if d is not None), default=None)

    def begin(self) -> None:
        """Calls `on_train_begin`; gives Keras' callbacks their states."""
        self.call("on_train_begin", {})
        # Only now: their `on_train_begin` resets them.
        self.give_states()

    def give_states(self) -> None:
        """Restores the states of Keras' callbacks from `load_states`."""
        for key, values in self._waiting.items():
            keras_callbacks.load(self._keyed()[key], values)
        self._waiting = {}

    def states(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint must hold of the callbacks.

        JSON values, and for Keras' own callbacks also NumPy arrays and lists
        of these.
        """
        return {
            key: state
            for key, c in self._keyed().items()
            if (
                state := c.state()
                if isinstance(c, Callback)
                else keras_callbacks.state_of(c)
            )
        }

    def load_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restores callbacks' states; unknown ones are ignored.

        Raises:
            Misfit: one does not take its state; all are as they were before.
        """
        # So that a checkpoint that does not fit leaves no trace, and the one
        # before it can be tried.
        before = copy.deepcopy(self.states()), self._waiting
        try:
            self._load_states(states)
        except Misfit:
            for key, state in before[0].items():
                callback = self._keyed()[key]
                if isinstance(callback, Callback):
                    # A callback may refuse even its own state: the first error
                    # is the one to raise.
                    with contextlib.suppress(Misfit):
                        _load(key, callback, state)
            self._waiting = before[1]
            raise

    def _load_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        keyed = self._keyed()
        waiting = dict(self._waiting)
        for key, state in states.items():
            callback = keyed.get(key)
            if isinstance(callback, Callback):
                _load(key, callback, state)
            elif callback is not None:
                # Checked now, when a misfit can still be refused, and set in
                # `begin`.
                keras_callbacks.check(callback, state)
                waiting[key] = state
        self._waiting = waiting

    def end(
        self, logs: dict[str, float], before_savers: Callable[[], None]
    ) -> None:
        """Calls every `on_train_end`: if one fails, others still save.

        Args:
            logs: the newest values.
            before_savers: called before the callbacks that save.
        """
        savers = list(filter(_runs_last, self.all))
        others = [one for one in self.all if one not in savers]
        try:
            self._call_all(others, "on_train_end", logs)
        finally:
            before_savers()
            self._call_all(savers, "on_train_end", logs)

    def close(self) -> None:
        """Closes every callback, also after one's close failed."""
        self._call_all(self.ours, "close")

    def _call_all(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        event: str,
        *arguments: Any,
    ) -> None:
        """Calls an event of all, then raises the first error, if any."""
        failed: Exception | None = None
        for callback in callbacks:
            try:
                getattr(callback, event)(*arguments)
            # Not the KeyboardInterrupt of a second Ctrl-C, which ends all of
            # it.
            except Exception as error:
                if failed is None:
                    failed = error
                    continue
                name = type(callback).__name__
                logging.exception("%s.%s failed, too", name, event)
        if failed is not None:
            raise failed

    def _keyed(self) -> dict[str, keras.callbacks.Callback]:
        """Callbacks by class name, numbered where there are several.

        The names must be those of the next process: no ids, no addresses.
        """
        keyed: dict[str, keras.callbacks.Callback] = {}
        for callback in self.all:
            name = key = type(callback).__name__
            number = 1
            while key in keyed:
                number += 1
                key = f"{name}_{number}"
            keyed[key] = callback
        return keyed


def _load(key: str, callback: Callback, state: dict[str, Any]) -> None:
    """Restores a callback's state; any error becomes a `Misfit`.

    Raises:
        Misfit: it does not take it.
    """
    try:
        callback.load_state(state)
    except Misfit:
        raise
    except Exception as error:
        why = headline(error)
        raise Misfit(f"{key} does not take its state ({why})") from error


def _choose_mode(callback: keras.callbacks.Callback) -> None:
    """Sets the mode of Keras' callbacks: whether less or more is better.

    They would look for the metric in the model, which has none here.
    """
    name = getattr(callback, "monitor", None)
    is_open = getattr(callback, "mode", None) == "auto"
    if isinstance(callback, Callback) or not isinstance(name, str):
        return
    if is_open:
        # If the name does not tell, Keras refuses it itself.
        with contextlib.suppress(UserError):
            callback.mode = Monitor(name).mode


def _runs_last(callback: keras.callbacks.Callback) -> bool:
    return bool(getattr(callback, "runs_last", False))


def _reads_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback of Keras' kind looks at single batches."""
    return not isinstance(callback, Callback) and any(
        has_event(callback, event)
        for event in ("on_train_batch_end", "on_batch_end")
    )


def has_event(callback: keras.callbacks.Callback, event: str) -> bool:
    """Whether a callback does something in an event of Keras'."""
    # LambdaCallback keeps its functions in itself, not in its class.
    return event in vars(callback) or getattr(
        type(callback), event
    ) is not getattr(keras.callbacks.Callback, event)
