"""The state of Keras' own callbacks, for a checkpoint.

They have no methods for it, but keep what they have seen (the best value, how
long to wait for a better one, the best weights) in attributes. What a run has
changed of these is saved.
"""

import collections
import functools
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np

from trainer.checkpoint.encoding import (
    Encoder,
    NotSaved,
    decode,
    is_number,
    same,
    settled,
)
from trainer.errors import UserError
from trainer.runtime import schema
from trainer.runtime.process_exit import headline
from trainer.runtime.schema import Misfit

_CHECK = schema.record({"arrays": schema.Positive, "is_list": bool})
_ARRAYS = {"arrays", "is_list"}
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
    """What a callback of Keras' kind changes of itself in a run.

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
        self._begun: dict[str, Any] | None = None

    def first(self) -> None:
        """Notes what there is before any event of the callback's first run."""
        if _FIRST not in vars(self._callback):
            vars(self._callback)[_FIRST] = self._trees()

    def begin(self) -> None:
        """Notes what each process makes of the callback until it trains."""
        self._begun = self._trees()

    def _trees(self) -> dict[str, Any]:
        package = type(self._callback).__module__.partition(".")[0]
        encoder = Encoder(self._held(), package=package)
        found = {
            name: encoder.tree(value)
            for name, value in vars(self._callback).items()
            if name not in _NOT_STATE
        }
        return {n: tree for n, tree in found.items() if self._takes(n, tree)}

    def _takes(self, name: str, tree: Any) -> bool:
        return name not in self._of_keras or _is_numbers(tree)

    def state(self, *, is_saved: bool = True) -> dict[str, Any]:
        """What has changed: attribute name to JSON values and arrays.

        Args:
            is_saved: whether what cannot be saved is refused, or left out.

        Raises:
            UserError: something that has cannot be saved.
        """
        found = {}
        first = vars(self._callback).get(_FIRST, {})
        begun = self._begun or {}
        for name, tree in self._trees().items():
            known = [one[name] for one in (first, begun) if name in one]
            if len(known) == 2 and all(same(tree, one) for one in known):
                continue
            try:
                found[name] = settled(tree, begun.get(name))
            except NotSaved as error:
                if not is_saved:
                    continue
                kind = type(self._callback).__name__
                raise UserError(
                    f"{kind}.{name} has changed since the run began, to what "
                    f"a checkpoint cannot hold ({error}). Keep numbers, text, "
                    "arrays or containers of these there, or derive the class "
                    "from trainer.Callback, whose method state says what is "
                    "saved."
                ) from None
        return found

    def check(self, state: Any) -> None:
        """Checks a state before anything is restored.

        Raises:
            Misfit: it is not a state, or a value of Keras' own code is of
                another kind than the one that the callback has now.
        """
        name = type(self._callback).__name__
        if not isinstance(state, dict):
            raise Misfit(f"the state of {name} is not an object")
        for key, now in self._trees().items():
            if key not in state or key not in self._of_keras:
                continue
            if not _fits(self._callback, key, now, state[key]):
                raise Misfit(f"{name}.{key} has a value of another kind")

    def load(self, state: Mapping[str, Any]) -> None:
        """Sets attributes to a state; all others are as the run began.

        A checkpoint replaces no method, and no text or function that Keras'
        own code uses.

        Raises:
            UserError: a value does not fit.
        """
        callback, now = self._callback, self._trees()
        begun = now if self._begun is None else self._begun
        for name in now.keys() - begun.keys() - state.keys():
            delattr(callback, name)
        for name, tree in begun.items():
            if name not in state and not same(tree, now.get(name)):
                self._set(name, settled(tree, tree))
        for name, held in state.items():
            if self._may_set(name, held):
                self._set(name, held)

    def _may_set(self, name: str, held: Any) -> bool:
        kind = type(self._callback)
        if name in self._of_keras or _is_keras(kind):
            # Not what is a function, a text or nothing at present.
            return name in self._trees() and _is_numbers(held)
        its = getattr(kind, name, None)
        return name not in _NOT_STATE and not (
            callable(its) or hasattr(its, "__set__")
        )

    def _set(self, name: str, held: Any) -> None:
        try:
            value = decode(held, vars(self._callback).get(name))
        # Of whatever a value of another kind makes impossible.
        except Exception as error:
            raise UserError(
                f"{type(self._callback).__name__}.{name} does not take what "
                f"the checkpoint holds of it ({headline(error)}). If the "
                "callback has changed, choose another --model_dir."
            ) from error
        setattr(self._callback, name, value)


def split(
    states: Mapping[str, dict[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Splits states of callbacks into JSON values and arrays.

    Returns:
        The states, in which `{"arrays": n, "is_list": b}` stands for arrays;
        and these, as `callback/attribute/number`.
    """
    arrays: dict[str, Any] = {}
    counts: collections.Counter[str] = collections.Counter()

    def plain(value: Any, path: str) -> Any:
        if not isinstance(value, np.ndarray):
            return None  # What is in it comes next.
        arrays[f"{path}/{counts[path]}"] = value
        counts[path] += 1
        return {"arrays": 1, "is_list": False}

    return _changed(states, plain), arrays


def join(
    plain: Mapping[str, dict[str, Any]], arrays: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Undoes `split`.

    Raises:
        Misfit: it is not what `split` returns.
    """
    schema.Check(dict[str, dict])(plain, "callbacks")
    counts: collections.Counter[str] = collections.Counter()

    def whole(value: Any, path: str) -> Any:
        if not isinstance(value, dict) or set(value) != _ARRAYS:
            return None
        _CHECK(value, path)
        begin = counts[path]
        # No more than there are, whatever is asked for.
        counts[path] += min(value["arrays"], len(arrays) + 1)
        names = [f"{path}/{i}" for i in range(begin, counts[path])]
        if not arrays.keys() >= set(names):
            raise Misfit(f"an array of {path} is missing")
        found = [arrays[one] for one in names]
        return found if value["is_list"] else found[0]

    return _changed(plain, whole)


def _changed(
    states: Mapping[str, dict[str, Any]], change: Callable[..., Any]
) -> dict[str, dict[str, Any]]:
    """States in which some parts are others: those that `change` returns."""
    return {
        key: {
            name: keras.tree.traverse(
                functools.partial(change, path=f"{key}/{name}"), value
            )
            for name, value in state.items()
        }
        for key, state in states.items()
    }


def _fits(
    callback: keras.callbacks.Callback, name: str, now: Any, then: Any
) -> bool:
    """Whether a stored value may replace the present one.

    `None` may become a value, and the other way round: it is how Keras says
    that a value is not known yet.
    """
    is_early_stopping = isinstance(callback, keras.callbacks.EarlyStopping)
    # These go into the model when training ends: they must fit it.
    if is_early_stopping and name == "best_weights" and then is not None:
        shapes = [tuple(v.shape) for v in callback.model.weights]
        arrays = isinstance(then, list) and all(
            isinstance(v, np.ndarray) for v in then
        )
        return arrays and shapes == [v.shape for v in then]
    return now is None or then is None or _kind(now) == _kind(then)


def _kind(value: Any) -> Any:
    if is_number(value):
        return "number"
    kinds = (str, dict, list | np.ndarray)
    return next((kind for kind in kinds if isinstance(value, kind)), None)


def _is_numbers(tree: Any) -> bool:
    """Whether there is no text, and nothing else that is no number."""
    if isinstance(tree, dict) and not is_number(tree):
        return all(map(_is_numbers, tree.values()))
    if isinstance(tree, list):
        return all(map(_is_numbers, tree))
    return tree is None or isinstance(tree, np.ndarray) or is_number(tree)


def _is_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"
