"""Calls callbacks in order, and closes all of them whatever happens."""

import collections
import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

import keras
import numpy as np
from absl import logging

from trainer.checkpoint.keras_callbacks import Attributes
from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.loop.monitor import OURS, Monitor
from trainer.loop.run import Run
from trainer.runtime.process_exit import headline
from trainer.runtime.schema import Misfit
from trainer.step.keras.private import profiles_batches
from trainer.strategy.optimizers import by_part
from trainer.values.words import shown

# The steps of a host loop, if no callback acts on each of them.
_STEPS_PER_LOOP = 100
_BATCH_ENDS = ("on_train_batch_end", "on_batch_end")
_BATCH_BEGINS = ("on_train_batch_begin", "on_batch_begin")
# What Keras calls before it traces a step.
_SET_UP = ("on_train_begin", "on_epoch_begin", *_BATCH_BEGINS)
# What is in a state, but for lists and dicts.
_SAVED = (NoneType, str, int, float, np.generic)
# Callbacks of Keras that need its own fit, and what a run has in their place.
_REFUSED = {
    # It tells the model where to continue, and not the Trainer: epochs that are
    # done would be trained again.
    keras.callbacks.BackupAndRestore: (
        "resumes only Keras' own fit. For a run that resumes, use the callback "
        "Checkpoint; in Python, call train('3 epochs', model_dir='run', "
        "callbacks=[Checkpoint()])."
    ),
}


class CallbackList:
    """The callbacks of a run: the given order, savers last.

    Args:
        callbacks: ours, or any `keras.callbacks.Callback`.
        run: handed to each callback, and its model to Keras' own.

    Attributes:
        set_up: whether users' functions are called before the first step, and
            may set in Python what it is traced with.

    Raises:
        UserError: there are two of a class that may be there once, or one
            that works only in Keras' own fit.
    """

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], run: Run
    ) -> None:
        _check(callbacks)
        self._run = run
        # A stable sort: apart from savers, the user's order is kept.
        self.all = sorted(callbacks, key=_runs_last)
        self.ours = [c for c in self.all if isinstance(c, Callback)]
        self.savers = [c for c in self.ours if c.runs_last]
        for callback in self.ours:
            callback.run = run
        # By class name, numbered where there are several. The names must be
        # those of the next process: no ids, no addresses.
        self._keyed: dict[str, keras.callbacks.Callback] = {}
        counts: collections.Counter[str] = collections.Counter()
        for callback in self.all:
            name = type(callback).__name__
            counts[name] += 1
            number = f"_{counts[name]}" if counts[name] > 1 else ""
            self._keyed[name + number] = callback
        # Restored states of Keras' callbacks, until `on_train_begin` is over.
        self._waiting: dict[str, dict[str, Any]] = {}
        self._attributes = {
            key: Attributes(callback, lambda: run.state.held)
            for key, callback in self._keyed.items()
            if not isinstance(callback, Callback)
        }
        # Values for each batch are only computed if a callback may read them.
        self.wants_batch_logs = bool(self._acting(_BATCH_ENDS))
        self.set_up = any(_packages(c, _SET_UP) - OURS for c in self.all)

    @property
    def execution(self) -> int:
        """The batches for which Keras calls callbacks once."""
        return self._run.built.steps_per_execution

    def attach(self, model: keras.Model, params: dict[str, Any]) -> None:
        """Gives every callback the model, as `fit` does."""
        _check_averages(self.all, self._run)
        for callback in self.all:
            if not isinstance(callback, Callback):
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
        for callback in self.savers:
            getattr(callback, event)(*arguments)

    def have(self, event: str) -> bool:
        """Whether any callback does something in an event."""
        return any(has_event(callback, event) for callback in self.all)

    def keras_has(self, event: str) -> bool:
        """Whether a callback of Keras' kind does something in an event."""
        others = (c for c in self.all if not isinstance(c, Callback))
        return any(has_event(callback, event) for callback in others)

    @property
    def batch_events(self) -> Callable[..., None] | None:
        """`call`, if any callback looks at single batches of evaluations."""
        events = "on_test_batch_begin", "on_test_batch_end"
        looks = any(_acts_on_batches(c, events) for c in self.all)
        return self.call if looks else None

    def steps_per_loop(self, asked: int | None) -> int:
        """The most steps in a host loop of a run with these callbacks.

        Args:
            asked: what the user has set. Otherwise callbacks of Keras' kind
                that act on batches do so as often as in Keras.
        """
        acting = self._acting(_BATCH_BEGINS + _BATCH_ENDS)
        if not acting:
            return asked or _STEPS_PER_LOOP
        steps = asked or self.execution
        logging.log(
            logging.WARNING if (asked or 1) > 1 else logging.INFO,
            "%s acts on batches: it is called once for steps_per_loop = %d.",
            acting[0],
            steps,
        )
        return steps

    def _acting(self, events: Sequence[str]) -> list[str]:
        """The callbacks of Keras' kind that act on batches."""
        return [
            type(callback).__name__
            for callback in self.all
            if not isinstance(callback, Callback)
            and _acts_on_batches(callback, events)
        ]

    def next_due(self, step: int) -> int | None:
        """The first step at which a callback must act.

        Raises:
            UserError: one does not return a later step.
        """
        due: dict[Callback, Any] = {c: c.next_due(step) for c in self.ours}
        found = {c: one for c, one in due.items() if one is not None}
        for callback, one in found.items():
            if not isinstance(one, int | np.integer) or one <= step:
                raise UserError(
                    f"{type(callback).__name__}.next_due({step}) returned "
                    f"{shown(one)}. Return a later step, or None."
                )
        return min(found.values(), default=None)

    def begin(self) -> None:
        """Calls `on_train_begin`; gives Keras' callbacks their states."""
        for attributes in self._attributes.values():
            attributes.first()
        self.call("on_train_begin", {})
        for attributes in self._attributes.values():
            attributes.begin()
        # Only now: their `on_train_begin` resets them.
        self.give_states()
        # What cannot be saved is refused before the first step.
        if self._run.saves:
            self.states()

    def repeat(self, event: str, *arguments: Any) -> None:
        """Calls an event a second time, and sets states back afterwards."""
        # A callback may return an object that it changes in the event.
        states = copy.deepcopy(self.states() | self.states_of_keras())
        self.call(event, *arguments)
        self.load_states(
            {
                key: state
                for key, state in states.items()
                if key in self._attributes or has_event(self._keyed[key], event)
            }
        )
        self.give_states()

    def states(self) -> dict[str, dict[str, Any]]:
        """Returns the state of our callbacks for a checkpoint, as JSON values.

        Raises:
            UserError: a callback returns something else.
        """
        found = {
            key: callback.state()
            for key, callback in self._keyed.items()
            if isinstance(callback, Callback)
        }
        for key, state in found.items():
            if not (isinstance(state, dict) and _can_be_saved(state)):
                raise UserError(
                    f"{key}.state() returned {shown(state)}. Return a dict of "
                    "JSON values, whose keys are strings."
                )
        return found

    def states_of_keras(self) -> dict[str, dict[str, bytes]]:
        """Returns the state of callbacks of Keras' kind for a checkpoint.

        Raises:
            UserError: one holds what cannot be saved.
        """
        return {
            key: attributes.state(is_saved=self._run.saves)
            for key, attributes in self._attributes.items()
        }

    def load_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restores callbacks' states; unknown ones are ignored.

        Raises:
            Misfit: one does not take its state; all are as they were before.
        """
        # So that a checkpoint that does not fit leaves no trace, and the one
        # before it can be tried.
        before = copy.deepcopy(self.states())
        waiting = dict(self._waiting)
        # What Keras' kind has not changed by then is as it was at first.
        states = {**dict.fromkeys(self._attributes, {}), **states}
        for key in [one for one in states if one in self._keyed]:
            try:
                self._load(key, states[key])
            except Exception as error:
                for other in before:
                    # A callback may refuse even its own state.
                    with contextlib.suppress(Exception):
                        self._load(other, before[other])
                self._waiting = waiting
                if isinstance(error, Misfit):
                    raise
                why = f"{key} rejects its saved state ({headline(error)})"
                raise Misfit(why) from error

    def _load(self, key: str, state: dict[str, Any]) -> None:
        callback = self._keyed[key]
        if isinstance(callback, Callback):
            callback.load_state(state)
        else:
            # Checked now, when a misfit can still be refused, and set later.
            self._attributes[key].check(state)
            self._waiting[key] = state

    def give_states(self) -> None:
        """Restores the states of Keras' callbacks from `load_states`."""
        for key, values in self._waiting.items():
            self._attributes[key].load(values)
        self._waiting = {}

    def end(
        self,
        logs: dict[str, float],
        *,
        of_epoch: dict[str, float],
        before_savers: Callable[[], None],
    ) -> None:
        """Calls every `on_train_end`: if one fails, others still save.

        Args:
            logs: the newest values, for savers.
            of_epoch: those of the last epoch, for the others.
            before_savers: called before the callbacks that save.
        """
        others = [one for one in self.all if one not in self.savers]
        try:
            _call_all(others, "on_train_end", of_epoch)
        finally:
            before_savers()
            _call_all(self.savers, "on_train_end", logs)

    def close(self) -> None:
        """Closes every callback, also after one's close failed."""
        _call_all(self.ours, "close")


def _can_be_saved(value: Any) -> bool:
    """Whether a checkpoint gives a state back as it is."""
    if isinstance(value, dict):
        names, value = value.keys(), [*value.values()]
        return all(isinstance(x, str) for x in names) and _can_be_saved(value)
    if isinstance(value, list | tuple):
        return all(map(_can_be_saved, value))
    return isinstance(value, _SAVED)


def _check(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    for one in callbacks:
        for kind, why in _REFUSED.items():
            if isinstance(one, kind):
                raise UserError(f"{type(one).__name__} {why}")
    single = [type(c) for c in callbacks if getattr(c, "single", False)]
    for kind, count in collections.Counter(single).items():
        if count > 1:
            raise UserError(
                f"run.callbacks has {count} {kind.__name__} callbacks, which "
                "would get in each other's way. Keep one."
            )


def _check_averages(
    callbacks: Sequence[keras.callbacks.Callback], run: Run
) -> None:
    """Checks that callbacks read the averaged weights that there are."""
    optimizers = by_part(run.parts.optimizers).values()
    for one in callbacks:
        name = type(one).__name__
        swaps = isinstance(one, keras.callbacks.SwapEMAWeights)
        if swaps and not any(each.use_ema for each in optimizers):
            raise UserError(
                f"{name} must be used when `use_ema=True` is set on the "
                "optimizer, on one device. Or leave it out and set "
                "Trainer.ema_momentum: evaluations, exports and saved models "
                "have the averaged weights then."
            )
        for option in ("save_best_only", "restore_best_weights"):
            if run.parts.ema is not None and getattr(one, option, False):
                raise UserError(
                    f"{name}.{option} would choose by the averaged weights of "
                    "ema_momentum, but keep the others. Turn it off, and let "
                    "the callback Checkpoint keep the best: it keeps both."
                )


def _call_all(
    callbacks: Sequence[keras.callbacks.Callback], event: str, *arguments: Any
) -> None:
    """Calls an event of all, then raises the first error, if any."""
    failed: Exception | None = None
    for callback in callbacks:
        try:
            getattr(callback, event)(*arguments)
        # Not the KeyboardInterrupt of a second Ctrl-C, which ends all of it.
        except Exception as error:
            if failed is None:
                failed = error
                continue
            name = type(callback).__name__
            logging.exception("%s.%s failed, too", name, event)
    if failed is not None:
        raise failed


def _choose_mode(callback: keras.callbacks.Callback) -> None:
    """Sets the mode of Keras' callbacks: whether less or more is better.

    They would look for the metric in the model, which has none here.
    """
    name = getattr(callback, "monitor", None)
    if isinstance(name, str) and getattr(callback, "mode", None) == "auto":
        # If the name does not tell, Keras refuses it itself.
        with contextlib.suppress(UserError):
            callback.mode = Monitor(name).mode


def _runs_last(callback: keras.callbacks.Callback) -> bool:
    return isinstance(callback, Callback) and callback.runs_last


def _packages(
    callback: keras.callbacks.Callback, events: Sequence[str]
) -> set[str]:
    """The packages that define what a callback does in events."""
    defined = [
        next(kind for kind in type(callback).__mro__ if event in vars(kind))
        for event in events
        if event not in vars(callback) and has_event(callback, event)
    ]
    found = {kind.__module__.partition(".")[0] for kind in defined}
    # `LambdaCallback` has functions of the user's.
    return found | {"" for event in events if event in vars(callback)}


def _acts_on_batches(
    callback: keras.callbacks.Callback, events: Sequence[str]
) -> bool:
    found = _packages(callback, events)
    # Keras' own that have a period act in these events only if it is in
    # batches.
    periods = [getattr(callback, n, "") for n in ("save_freq", "update_freq")]
    if found == {"keras"} and "epoch" in periods:
        return profiles_batches(callback)
    return bool(found)


def has_event(callback: keras.callbacks.Callback, event: str) -> bool:
    """Whether a callback does something in an event of Keras'."""
    # LambdaCallback keeps its functions in itself, not in its class.
    return event in vars(callback) or getattr(
        type(callback), event
    ) is not getattr(keras.callbacks.Callback, event)
