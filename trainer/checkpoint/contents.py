"""Checks a checkpoint's contents before any of it is used.

A checkpoint may come from a different version, or be damaged. Unknown names are
ignored: a later version may add some.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import tensorflow as tf
from annotated_types import Ge, Le

from trainer.errors import UserError
from trainer.runtime.schema import (
    Count,
    Misfit,
    Number,
    Positive,
    Word,
    record,
)

# The upper bound, some 30,000 years, keeps sums of times finite.
_SECONDS = Annotated[Number, Ge(0.0), Le(1e12)]
_STOPPED = record(
    {
        "reason": str | None,
        "by_model": bool,
        "steps": Positive,
        "configuration": str | None,
    },
    {"max_time": str | None},
)
# A loss may be any float, NaN and infinity included.
_NUMBERS = dict[str, float]
_LINE = record(
    {"step": Count, "split": Word, "values": _NUMBERS}, {"final": bool}
)
LOGGED = list[_LINE.kind]  # type: ignore[name-defined]
_LOOP = record(
    {
        "unfired_from": Count | None,
        "begun_epoch": Count | None,
        "stopped": _STOPPED.kind | None,
    },
    {
        "is_within": bool,
        "compared": dict[str, str],
        "logged": record({}, {"waiting": LOGGED, "of_epoch": _NUMBERS}).kind,
        "steps_per_loop": Positive,
        "asked_steps_per_loop": Positive,
    },
)
_ACCOUNTS = record(
    {"id": str, "seconds": dict[str, _SECONDS], "saved_at": _SECONDS | None}
)
_TIMES = record(
    {
        "interval_seconds": _SECONDS,
        "elapsed": dict[str, _SECONDS],
        "accounts": _ACCOUNTS.kind,
    }
)
_OF_LOOP = {
    "callbacks": dict[str, dict[str, Any]],
    "logs": _NUMBERS,
    "loop": _LOOP.kind,
    "times": _TIMES.kind,
    "totals": dict[str, dict[str, Count]],
}
_VARIABLE = record({"path": str, "shape": list[Count]})
_HOST = record(
    {"variables": dict[str, list[_VARIABLE.kind]]},  # type: ignore[name-defined]
    {**_OF_LOOP, "fingerprint": str | None},
)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a run at one step.

    Attributes:
        step: optimizer steps that were done.
        arrays: name to tensor or array.
        host: JSON values.
    """

    step: int
    arrays: dict[str, Any]
    host: dict[str, Any]


def key_of(group: str, number: int) -> str:
    """A variable's name among the arrays of a snapshot.

    By number, not by path: Keras numbers layer names within a process, so that
    the same model may have other paths in the next one.
    """
    return f"{group}/{number:04d}"


def describe(variable: Any) -> dict[str, Any]:
    """A snapshot's entry for a variable: its path and its shape."""
    return {
        "path": getattr(variable, "path", variable.name),
        "shape": [int(size) for size in variable.shape],
    }


def check(snapshot: Snapshot) -> None:
    """Checks the JSON of a snapshot, and that its arrays match the JSON.

    Raises:
        Misfit: something is missing, of another kind or out of bounds.
    """
    host = snapshot.host
    _HOST(host, "state.json")
    # All or none: a snapshot taken outside of a loop has no part of one.
    missing = [name for name in _OF_LOOP if name not in host]
    if 0 < len(missing) < len(_OF_LOOP):
        raise Misfit(f"state.json has no {missing[0]!r}")
    for name in ("unfired_from", "begun_epoch"):
        then = host.get("loop", {}).get(name)
        if (then or 0) > snapshot.step:
            raise Misfit(f"loop.{name} is {then}, after step {snapshot.step}")
    for key, shape in _arrays(host):
        array = snapshot.arrays.get(key)
        if array is None:
            raise Misfit(f"the array {key} is missing")
        if shape is not None and list(array.shape) != shape:
            raise Misfit(
                f"the array {key} has shape {list(array.shape)}, and "
                f"state.json says {shape}"
            )
        if _kind(array) is None:
            raise Misfit(f"the array {key} holds no numbers")


def check_variables(group: str, members: list[Any], snapshot: Snapshot) -> None:
    """Checks that the variables of a run are those of a checked snapshot.

    Args:
        group: such as `"model"`.
        members: the run's variables.
        snapshot: has passed `check`.

    Raises:
        UserError: they differ in shape, or a value cannot be cast to the type
            of its variable; the first difference is named.
    """
    there = snapshot.host["variables"].get(group, [])
    wrong = None
    if len(members) != len(there):
        wrong = f"{len(members)} variables, but {len(there)} there"
    for i, (variable, entry) in enumerate(zip(members, there, strict=False)):
        ours = describe(variable)
        # Within a kind values are cast: the run may have another precision.
        then, now = snapshot.arrays[key_of(group, i)], variable
        if ours["shape"] != entry["shape"]:
            wrong = f"shape {ours['shape']}, but {entry['shape']} there"
        elif _kind(then) != _kind(now):
            wrong = f"type {now.dtype}, but {then.dtype} there"
        else:
            continue
        wrong = f"{ours['path']} has {wrong}"
        break
    if wrong is not None:
        raise UserError(
            f"The checkpoint is of a different {group.split('/')[0]}: {wrong}. "
            "Choose another --model_dir, or start from it with --init_from."
        )


def _arrays(host: dict[str, Any]) -> Iterator[tuple[str, list[int] | None]]:
    """The arrays that the JSON speaks of, and their shapes if it says them."""
    for group, entries in host["variables"].items():
        for i, entry in enumerate(entries):
            yield key_of(group, i), entry["shape"]
    for name, counts in host.get("totals", {}).items():
        for key, count in counts.items():
            for i in range(count):
                yield f"totals/{name}/{key}/{i}", None


def _kind(array: Any) -> str | None:
    """The kind of the numbers in an array or variable; `None` if of none."""
    # NumPy has kinds that TensorFlow does not, such as dates.
    try:
        dtype = tf.as_dtype(array.dtype)
    except TypeError:
        return None
    if dtype.is_floating:
        return "float"
    if dtype.is_integer:
        return "integer"
    return "truth value" if dtype.is_bool else None
