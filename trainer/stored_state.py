"""What a checkpoint of a run must hold, whoever has written it.

All of it is checked before anything of it is used. Names that are not known
here are left alone: a later version may add some.
"""

from typing import Any

import tensorflow as tf

from trainer.checkpoints import Snapshot
from trainer.schema import (
    Misfit,
    boolean,
    integer,
    list_of,
    mapping_of,
    number,
    optional,
    record,
    text,
)
from trainer.step.totals import METRIC

_SECONDS = number(least=0.0, most=1e12)
_STOPPED = record(
    {
        "reason": optional(text),
        "by_model": boolean,
        "steps": integer(1),
        "configuration": optional(text),
    }
)
_LOOP = record(
    {
        "unfired_from": optional(integer()),
        "begun_epoch": optional(integer()),
        "stopped": optional(_STOPPED),
    },
    {"steps_per_loop": integer(1), "asked_steps_per_loop": integer(1)},
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
    # A loss may be anything that a float can be.
    "logs": mapping_of(number(finite=False)),
    "loop": _LOOP,
    "times": _TIMES,
    "totals": mapping_of(mapping_of(integer())),
}
_HOST = record(
    {"variables": mapping_of(list_of(_VARIABLE))},
    {"fingerprints": record({}), **_OF_LOOP},
)


def key_of(group: str, number: int) -> str:
    """A variable's name among the arrays of a snapshot.

    Numbered: Keras counts layer names up within a process.
    """
    return f"{group}/{number:04d}"


def check(snapshot: Snapshot) -> None:
    """Checks what a snapshot says, and that its arrays are what it says.

    Raises:
        Misfit: something is missing, of another kind or out of bounds.
    """
    host = snapshot.host
    _HOST(host, "state.json")
    missing = [name for name in _OF_LOOP if name not in host]
    if snapshot.format and missing and len(missing) < len(_OF_LOOP):
        raise Misfit(f"state.json has no {missing[0]!r}")
    for group, entries in host["variables"].items():
        for i, entry in enumerate(entries):
            _check_array(snapshot, key_of(group, i), entry["shape"])
    for name, counts in host.get("totals", {}).items():
        for key, count in counts.items():
            # What is no metric's is a sum or a count.
            shape: list[int] | None = None if key.startswith(METRIC) else []
            for i in range(count):
                _check_array(snapshot, f"totals/{name}/{key}/{i}", shape)
    loop = host.get("loop", {})
    for name in ("unfired_from", "begun_epoch"):
        if (loop.get(name) or 0) > snapshot.step:
            raise Misfit(
                f"loop.{name} is {loop[name]}, after step {snapshot.step}"
            )
    most = loop.get("asked_steps_per_loop")
    if most is not None and loop.get("steps_per_loop", most) > most:
        raise Misfit("loop.steps_per_loop is more than was asked for")


def _check_array(snapshot: Snapshot, key: str, shape: list[int] | None) -> None:
    if key not in snapshot.arrays:
        raise Misfit(f"the array {key} is missing")
    array: Any = snapshot.arrays[key]
    if shape is not None and list(array.shape) != shape:
        raise Misfit(
            f"the array {key} has shape {list(array.shape)}, and state.json "
            f"says {shape}"
        )
    try:
        dtype = tf.as_dtype(array.dtype)
    except TypeError:
        dtype = tf.string
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise Misfit(f"the array {key} holds no numbers")
