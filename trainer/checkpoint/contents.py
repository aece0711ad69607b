"""Checks what a checkpoint holds before any of it is used.

A checkpoint may come from another version, or be damaged. Unknown names are
ignored: a later version may add some.
"""

from typing import Any

import tensorflow as tf

from trainer.checkpoint.storage import Snapshot
from trainer.runtime.schema import (
    Misfit,
    boolean,
    integer,
    list_of,
    mapping_of,
    number,
    optional,
    record,
    text,
    word,
)
from trainer.step.logs import METRIC, STATE

# The upper bound, some 30,000 years, keeps sums of times finite.
_SECONDS = number(least=0.0, most=1e12)
_STOPPED = record(
    {
        "reason": optional(text),
        "by_model": boolean,
        "steps": integer(1),
        "configuration": optional(text),
    },
    {"max_time": optional(text)},
)
_NUMBERS = mapping_of(number(finite=False))
_LOGGED = list_of(
    record(
        {
            "step": integer(),
            "split": word,
            "values": _NUMBERS,
        }
    )
)
_LOOP = record(
    {
        "unfired_from": optional(integer()),
        "begun_epoch": optional(integer()),
        "stopped": optional(_STOPPED),
    },
    {
        "is_within": boolean,
        "compared": mapping_of(text),
        "logged": record(
            {},
            {"waiting": _LOGGED, "final": _LOGGED, "of_epoch": _NUMBERS},
        ),
        "final": list_of(word),
        "steps_per_loop": integer(1),
        "asked_steps_per_loop": integer(1),
    },
)
_ACCOUNTS = record(
    {
        "id": text,
        "seconds": mapping_of(_SECONDS),
        "saved_at": optional(_SECONDS),
    }
)
_TIMES = record(
    {
        "interval_seconds": _SECONDS,
        "elapsed": mapping_of(_SECONDS),
        "accounts": _ACCOUNTS,
    }
)
_VARIABLE = record({"path": text, "shape": list_of(integer())})
_OF_LOOP = {
    "callbacks": mapping_of(record({})),
    # A loss may be any float, NaN and infinity included.
    "logs": mapping_of(number(finite=False)),
    "loop": _LOOP,
    "times": _TIMES,
    "totals": mapping_of(mapping_of(integer())),
}
_HOST = record(
    {"variables": mapping_of(list_of(_VARIABLE))},
    {
        "fingerprints": record({}),
        "untracked": mapping_of(list_of(integer())),
        **_OF_LOOP,
    },
)


def key_of(group: str, number: int) -> str:
    """A variable's name among the arrays of a snapshot.

    By number, not by path: Keras numbers layer names within a process, so that
    the same model may have other paths in the next one.
    """
    return f"{group}/{number:04d}"


def check(snapshot: Snapshot) -> None:
    """Checks the JSON of a snapshot, and that its arrays match the JSON.

    Raises:
        Misfit: something is missing, of another kind or out of bounds.
    """
    host = snapshot.host
    _HOST(host, "state.json")
    # All or none: a snapshot taken outside of a loop has no part of one.
    missing = [name for name in _OF_LOOP if name not in host]
    if missing and len(missing) < len(_OF_LOOP):
        raise Misfit(f"state.json has no {missing[0]!r}")
    for group, entries in host["variables"].items():
        for i, entry in enumerate(entries):
            _check_array(snapshot, key_of(group, i), entry["shape"])
    for key, shape in host.get("untracked", {}).items():
        _check_array(snapshot, f"untracked/{key}", shape)
    for name, counts in host.get("totals", {}).items():
        for key, count in counts.items():
            for i in range(count):
                _check_total(snapshot, key, f"totals/{name}/{key}/{i}")
    loop = host.get("loop", {})
    for name in ("unfired_from", "begun_epoch"):
        if (loop.get(name) or 0) > snapshot.step:
            raise Misfit(
                f"loop.{name} is {loop[name]}, after step {snapshot.step}"
            )
    most = loop.get("asked_steps_per_loop")
    if most is not None and loop.get("steps_per_loop", most) > most:
        raise Misfit("loop.steps_per_loop is more than asked_steps_per_loop")


def totals_by_replica(
    snapshot: Snapshot, name: str, counts: dict[str, int]
) -> dict[str, list[Any]]:
    """The sums of an interval, with an axis for replicas in front."""
    return {
        key: [snapshot.arrays[f"totals/{name}/{key}/{i}"] for i in range(count)]
        for key, count in counts.items()
    }


def _check_total(snapshot: Snapshot, key: str, name: str) -> None:
    """Checks a sum by replica."""
    _check_array(snapshot, name, None)
    # A state of a metric may have any shape.
    if key.startswith(STATE):
        return
    shape = snapshot.arrays[name].shape
    # Apart from metrics' there are only sums and counts, which are scalars.
    if not shape or (len(shape) > 1 and not key.startswith(METRIC)):
        raise Misfit(f"the array {name} has {len(shape)} axes")
    if not shape[0]:
        raise Misfit(f"the array {name} has no replicas")


def _check_array(snapshot: Snapshot, key: str, shape: list[int] | None) -> None:
    if key not in snapshot.arrays:
        raise Misfit(f"the array {key} is missing")
    array: Any = snapshot.arrays[key]
    if shape is not None and list(array.shape) != shape:
        raise Misfit(
            f"the array {key} has shape {list(array.shape)}, and state.json "
            f"says {shape}"
        )
    # NumPy has kinds that TensorFlow does not, such as dates; NumPy's objects
    # are TensorFlow's strings.
    try:
        dtype = tf.as_dtype(array.dtype)
    except TypeError:
        dtype = tf.string
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise Misfit(f"the array {key} holds no numbers")
