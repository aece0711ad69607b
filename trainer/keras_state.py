"""What a checkpoint holds of callbacks that know nothing of checkpoints.

Keras' callbacks keep what they have seen (the best value, the patience that
is left, the best weights) in plain attributes.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

_NOT_STATE = {
    # What the loop sets at each start.
    *("model", "_model", "params", "validation_data"),
    # What Keras' callbacks know of this process, and of files as they are now.
    *("append_header", "_should_trace", "_is_tracing", "_profiler_started"),
}


def state_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """The attributes of a callback that are plain values.

    Args:
        callback: of any class.

    Returns:
        Attribute name to a JSON value, a NumPy array or a list of arrays.
        Functions, models and other objects are left out, and so is what is
        named like an argument of the constructor: that is configuration.
        Texts of Keras' own callbacks are left out, too: they are paths, and
        a checkpoint must not choose which files are written.
    """
    left_out = _NOT_STATE.union(
        *(
            inspect.signature(vars(kind)["__init__"]).parameters
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


def load(callback: keras.callbacks.Callback, state: Mapping[str, Any]) -> None:
    """Sets the attributes that the callback has.

    Only attributes that hold plain values now, or nothing: a checkpoint can
    replace no function, and no text in one of Keras' own.
    """
    known = state_of(callback)
    for name, value in state.items():
        if name in known and not (_is_of_keras(callback) and _has_text(value)):
            setattr(callback, name, value)


def split(
    states: Mapping[str, dict[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Parts states of callbacks into JSON values and arrays.

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
    """Undoes `split`."""
    joined: dict[str, dict[str, Any]] = {}
    for key, state in plain.items():
        joined[key] = dict(state)
        for name, value in state.items():
            if isinstance(value, dict) and set(value) == {"arrays", "is_list"}:
                found = [
                    arrays[f"{key}/{name}/{i}"] for i in range(value["arrays"])
                ]
                joined[key][name] = found if value["is_list"] else found[0]
    return joined


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
    """Whether a callback's class is one of Keras', or made from one."""
    return any(
        kind.__module__.partition(".")[0] == "keras"
        for kind in type(callback).__mro__
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
        return bool(value.dtype != object)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, np.ndarray) and v.dtype != object for v in value)
    )
