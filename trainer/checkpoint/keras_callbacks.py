"""The state of Keras' own callbacks, for a checkpoint.

They have no methods for it, but keep what they have seen (the best value, how
long to wait for a better one, the best weights) in attributes. Those that a run
has changed are saved.
"""

import contextlib
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np

from trainer.checkpoint.encoding import Encoded, Encoder, NotSaved
from trainer.errors import UserError
from trainer.runtime.process_exit import headline
from trainer.runtime.schema import Misfit

_NUMBER = bool | int | float | np.generic
# Where a callback keeps what it was as a run first had it.
_FIRST = "_trainer_first"
_NOT_STATE = {
    # Set by the loop at each start.
    *("model", "_model", "params", "validation_data", _FIRST),
    # About this process, and about files as they are now.
    *("append_header", "_should_trace", "_is_tracing", "_profiler_started"),
    # Objects that are None for a while, and then look like plain values.
    *("writer", "csv_file", "_summary_module", "_batch_trace_context"),
    # Keras changes its sign, together with a function that is not saved.
    "min_delta",
}


class Attributes:
    """The attributes that a callback of Keras' kind changes in a run.

    Attributes that Keras' own code uses are only numbers: its texts are paths,
    and a checkpoint must not choose which files are written.

    Args:
        callback: of any class that has no `state` of its own.
        held: gives the ids of variables that a checkpoint holds anyway.
    """

    def __init__(
        self,
        callback: keras.callbacks.Callback,
        held: Callable[[], Collection[int]],
    ) -> None:
        self._callback = callback
        kinds = [k for k in type(callback).__mro__ if _is_keras(k)]
        self._of_keras = {
            name
            for kind in kinds
            for one in vars(kind).values()
            if isinstance(one, types.FunctionType)
            for name in one.__code__.co_names
        }
        self._held = held
        self._begun: dict[str, Encoded] | None = None

    def first(self) -> None:
        """Notes what there is before any event of the callback's first run."""
        if _FIRST not in vars(self._callback):
            vars(self._callback)[_FIRST] = self._present({})

    def begin(self) -> None:
        """Notes what each process makes of the callback until it trains."""
        self._begun = self._present(vars(self._callback).get(_FIRST, {}))

    @property
    def _encoder(self) -> Encoder:
        package = type(self._callback).__module__.partition(".")[0]
        return Encoder(self._held(), package=package)

    def _present(self, before: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """The attributes that may be saved, with the numbers of before."""
        encoder, found = self._encoder, {}
        for name, value in vars(self._callback).items():
            if name in _NOT_STATE or not self._takes(name, value):
                continue
            # What leads back to itself stays as it is.
            with contextlib.suppress(ValueError, RecursionError):
                there = before.get(name, Encoded()).objects
                found[name] = encoder.bytes_of(value, there, grows=True)
        return found

    def _takes(self, name: str, value: Any) -> bool:
        return name not in self._of_keras or _is_numbers(value)

    def state(self, *, is_saved: bool = True) -> dict[str, bytes]:
        """Returns the changed values, by attribute.

        Args:
            is_saved: whether what cannot be saved is refused, or left out.

        Raises:
            UserError: something that has cannot be saved.
        """
        found, encoder = {}, self._encoder
        first = vars(self._callback).get(_FIRST, {})
        begun = self._begun or {}
        for name, now in self._present(begun).items():
            known = [one[name].data for one in (first, begun) if name in one]
            value = vars(self._callback)[name]
            if known == [now.data] * 2 or encoder.is_made_again(value):
                continue
            try:
                there = begun.get(name, Encoded()).objects
                found[name] = encoder.bytes_of(value, there).data
            except NotSaved as error:
                if not is_saved:
                    continue
                kind = type(self._callback).__name__
                raise UserError(
                    f"{kind}.{name} has changed since the run began, to a "
                    f"value that a checkpoint cannot hold ({error}). Keep "
                    "numbers, text, arrays or containers of these there, or "
                    "derive the class from trainer.Callback, whose method "
                    "state says what is saved."
                ) from None
        return found

    def check(self, state: Mapping[str, Any]) -> None:
        """Checks a state before anything is restored.

        Raises:
            Misfit: something in it is no value.
        """
        kind = type(self._callback).__name__
        for name, data in state.items():
            try:
                self._encoder.value_of(data, None)
            # Of whatever is no pickle, or names something.
            except Exception as error:
                raise Misfit(f"{kind}.{name}: {headline(error)}") from error

    def load(self, state: Mapping[str, bytes]) -> None:
        """Sets attributes to a state; all others are as the run began.

        A checkpoint replaces no method, and no text or function that Keras'
        own code uses.

        Raises:
            UserError: a value does not fit.
        """
        callback, now = self._callback, self._present(self._begun or {})
        begun = now if self._begun is None else self._begun
        for name in now.keys() - begun.keys() - state.keys():
            delattr(callback, name)
        for name, then in begun.items():
            if name not in state and then.data != now.get(name, then).data:
                self._set(name, then)
        for name, data in state.items():
            if self._may_set(name, data):
                there = begun.get(name, Encoded()).objects
                self._set(name, Encoded(data, there))

    def _may_set(self, name: str, data: bytes) -> bool:
        kind, callback = type(self._callback), vars(self._callback)
        if name in self._of_keras or _is_keras(kind):
            # Not what is a function, a text or nothing at present.
            is_there = name in callback and name not in _NOT_STATE
            return (
                is_there
                and self._takes(name, callback[name])
                and _is_numbers(self._encoder.value_of(data, None))
            )
        its = getattr(kind, name, None)
        return name not in _NOT_STATE and not (
            callable(its) or hasattr(its, "__set__")
        )

    def _set(self, name: str, then: Encoded) -> None:
        try:
            value = self._encoder.value_of(*then)
        # Of whatever a value of another kind makes impossible.
        except Exception as error:
            raise UserError(
                f"{type(self._callback).__name__}.{name} cannot be restored "
                f"from the checkpoint ({headline(error)}). If the callback has "
                "changed, choose another --model_dir."
            ) from error
        setattr(self._callback, name, value)


def _is_numbers(value: Any) -> bool:
    """Whether there is no text, and nothing else that is no number."""
    if isinstance(value, dict):
        return all(map(_is_numbers, value.values()))
    if isinstance(value, list):
        return all(map(_is_numbers, value))
    return value is None or isinstance(value, _NUMBER | np.ndarray)


def _is_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"
