"""What stored values must be like before anything is done with them.

A checkpoint may have been written by another version, or by somebody who
wants to do harm. A check takes a value and a name for it, and raises `Misfit`:

    check = record(
        {"best": optional(number()), "wait": integer()},
    )
    check(state, "EarlyStopping")
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
WORD = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# The largest integer that every JSON reader takes for what it is.
_MOST = 2**53


class Misfit(ValueError):
    """A stored value is not what it must be; the message is a clause."""


def integer(least: int = 0) -> Check:
    """An integer of at least so much; truth values are none."""
    return _plain(
        lambda value: _is(value, int) and least <= value <= _MOST,
        f"an integer of at least {least}",
    )


def number(
    *,
    least: float = -math.inf,
    most: float = math.inf,
    finite: bool = True,
) -> Check:
    """A number within bounds; NaN and infinities only if not `finite`."""

    def fits(value: Any) -> bool:
        # Python cannot turn every integer into a float, which isfinite needs.
        if _is(value, int) and abs(value) > _MOST:
            return False
        if not _is(value, int | float) or value < least or value > most:
            return False
        return not finite or math.isfinite(value)

    bound = "" if least == -math.inf else f" of at least {least:g}"
    if most < math.inf:
        bound += f" and at most {most:g}"
    kind = "a finite number" if finite else "a number"
    return _plain(fits, kind + bound)


def one_of(*valid: str) -> Check:
    """One of some strings."""
    return _plain(
        lambda value: isinstance(value, str) and value in valid,
        f"one of {', '.join(valid)}",
    )


def _plain(fits: Callable[[Any], bool], wanted: str) -> Check:
    """The check of a value that consists of no others."""

    def check(value: Any, name: str) -> None:
        if fits(value):
            return
        try:
            # Short, however much the value holds.
            shown = reprlib.repr(value)
        except ValueError:  # An integer of more digits than Python writes.
            shown = "too large"
        raise Misfit(f"{name} is {shown}, not {wanted}")

    return check


boolean = _plain(lambda value: isinstance(value, bool), "true or false")
text = _plain(lambda value: isinstance(value, str), "a text")
# What may become the name of a file or a folder.
word = _plain(
    lambda value: isinstance(value, str) and bool(WORD.fullmatch(value)),
    "a word of letters, digits, '_', '-' and '.'",
)
_list = _plain(lambda value: isinstance(value, list), "a list")
_object = _plain(lambda value: isinstance(value, dict), "an object")


def optional(inner: Check) -> Check:
    """What another check wants, or null."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            inner(value, name)

    return check


def list_of(inner: Check) -> Check:
    """A list of what another check wants."""

    def check(value: Any, name: str) -> None:
        _list(value, name)
        for i, item in enumerate(value):
            inner(item, f"{name}[{i}]")

    return check


def mapping_of(inner: Check) -> Check:
    """An object of any names, each with what another check wants."""

    def check(value: Any, name: str) -> None:
        _object(value, name)
        for key, item in value.items():
            inner(item, f"{name}.{key}")

    return check


def record(
    required: Mapping[str, Check], possible: Mapping[str, Check] | None = None
) -> Check:
    """An object with certain names; others are left alone.

    Args:
        required: name to check.
        possible: checked if they are there.
    """

    def check(value: Any, name: str) -> None:
        _object(value, name)
        for key, inner in {**required, **(possible or {})}.items():
            if key in value:
                inner(value[key], f"{name}.{key}")
            elif key in required:
                raise Misfit(f"{name} has no {key!r}")

    return check


def _is(value: Any, kind: Any) -> bool:
    # In Python a bool is an int, too.
    return isinstance(value, kind) and not isinstance(value, bool)
