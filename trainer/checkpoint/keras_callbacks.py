"""The state of Keras' own callbacks, for a checkpoint.

They have no methods for it, but keep what they have seen (the best value, how
long to wait for a better one, the best weights) in plain attributes.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from trainer.runtime import schema
from trainer.runtime.schema import Misfit

_ARRAYS = schema.record({"arrays": schema.Positive, "is_list": bool})

_NOT_STATE = {
    # Set by the loop at each start.
    *("model", "_model", "params", "validation_data"),
    # About this process, and about files as they are now.
    *("append_header", "_should_trace", "_is_tracing", "_profiler_started"),
    # Objects that are None for a while, and then look like plain values.
    *("writer", "csv_file", "_summary_module", "_batch_trace_context"),
}


def state_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """The attributes of a callback that are plain values.

    Args:
        callback: of any class.

    Returns:
        Attribute name to a JSON value, a NumPy array or a list of arrays.
        Functions, models and other objects are left out. So is what is named
        like an argument of the constructor: that is configuration. Texts of
        Keras' own callbacks are left out, too: they are paths, and a
        checkpoint must not choose which files are written.
    """
    left_out = _NOT_STATE.union(
        *(
            inspect.signature(vars(kind)["__init__"]).parameters
            # Base classes count: a subclass may pass arguments on.
            for kind in type(callback).__mro__
            if "__init__" in vars(kind) and kind is not object
        )
    )
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in left_out
        and (_is_plain(value) or _is_arrays(value))
        and not (_is_of_keras(callback) and _has_text(value))
    }


def check(callback: keras.callbacks.Callback, state: Any) -> None:
    """Checks a state before anything is restored.

    Raises:
        Misfit: it is not a state, or a value is of another kind than the one
            that the callback has now.
    """
    name = type(callback).__name__
    if not isinstance(state, dict):
        raise Misfit(f"the state of {name} is not an object")
    for key, now in state_of(callback).items():
        if key in state and not _fits(callback, key, now, state[key]):
            raise Misfit(f"{name}.{key} has a value of another kind")


def load(callback: keras.callbacks.Callback, state: Mapping[str, Any]) -> None:
    """Sets the attributes that the callback has.

    It sets only attributes whose present value is plain or `None`: a
    checkpoint cannot replace functions, nor texts in Keras' own callbacks.
    """
    for name in state_of(callback).keys() & state.keys():
        if not (_is_of_keras(callback) and _has_text(state[name])):
            setattr(callback, name, state[name])


def split(
    states: Mapping[str, dict[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Splits states of callbacks into JSON values and arrays.

    Returns:
        The states, in which `{"arrays": n, "is_list": b}` stands for arrays;
        and these, as `callback/attribute/number`.
    """
    plain: dict[str, dict[str, Any]] = {}
    arrays: dict[str, Any] = {}
    for key, state in states.items():
        plain[key] = {}
        for name, value in state.items():
            if not _is_arrays(value):
                plain[key][name] = value
                continue
            found = value if isinstance(value, list) else [value]
            plain[key][name] = {
                "arrays": len(found),
                "is_list": isinstance(value, list),
            }
            for i, array in enumerate(found):
                arrays[f"{key}/{name}/{i}"] = array
    return plain, arrays


def join(
    plain: Mapping[str, dict[str, Any]], arrays: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Undoes `split`.

    Raises:
        Misfit: it is not what `split` returns.
    """
    schema.Check(dict[str, dict])(plain, "callbacks")
    joined: dict[str, dict[str, Any]] = {}
    for key, state in plain.items():
        joined[key] = dict(state)
        for name, value in state.items():
            if isinstance(value, dict) and set(value) == {"arrays", "is_list"}:
                _ARRAYS(value, f"{key}.{name}")
                # No more than there are, whatever is asked for.
                count = min(value["arrays"], len(arrays) + 1)
                names = [f"{key}/{name}/{i}" for i in range(count)]
                if not arrays.keys() >= set(names):
                    raise Misfit(f"an array of {key}.{name} is missing")
                found = [arrays[one] for one in names]
                joined[key][name] = found if value["is_list"] else found[0]
    return joined


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
        return _is_arrays(then) and shapes == [np.shape(v) for v in then]
    return now is None or then is None or _kind(now) == _kind(then)


def _kind(value: Any) -> Any:
    # In this order: in Python a bool is an int, too.
    kinds = (
        bool | np.bool_,
        int | float | np.number,
        str,
        dict,
        list | np.ndarray,
    )
    return next((kind for kind in kinds if isinstance(value, kind)), None)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(
            isinstance(key, str) and _is_plain(item)
            for key, item in value.items()
        )
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(
        value, bool | int | float | str | np.bool_ | np.number
    )


def _is_of_keras(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback's class is Keras' own, or derived from one."""
    return any(
        kind.__module__.partition(".")[0] == "keras"
        for kind in type(callback).__mro__
        # From that one, every callback of a user is derived, too.
        if kind is not keras.callbacks.Callback
    )


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(_has_text, value))
    return isinstance(value, str)


def _is_arrays(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        # An object array may hold anything, and cannot be saved as numbers.
        return bool(value.dtype != object)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, np.ndarray) and v.dtype != object for v in value)
    )
