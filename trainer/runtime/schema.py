"""What stored values must be like before anything is done with them.

A checkpoint may have been written by another version, or by somebody who
wants to do harm. A check takes a value and a name for it, and raises `Misfit`:

    check = record(
        {"best": optional(number()), "wait": integer()},
    )
    check(state, "EarlyStopping")
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
# The largest integer that every JSON reader takes for what it is.
_MOST = 2**53


class Misfit(ValueError):
    """A stored value is not what it must be; the message is a clause."""


def integer(least: int = 0, most: int = _MOST) -> Check:
    """An integer within bounds; truth values are none."""

    def check(value: Any, name: str) -> None:
        if not _is(value, int) or not least <= value <= most:
            _refuse(value, name, f"an integer of at least {least}")

    return check


def number(
    *,
    least: float = -math.inf,
    most: float = math.inf,
    finite: bool = True,
) -> Check:
    """A number; NaN and infinities only where they may be.

    Args:
        least: the smallest that will do.
        most: the largest that will do.
        finite: whether NaN and infinities are refused.
    """

    def check(value: Any, name: str) -> None:
        fits = _is(value, int | float)
        if fits and _is(value, int):
            # Python cannot turn every integer into a float, which isfinite
            # needs.
            fits = abs(value) <= _MOST
        if fits and finite:
            fits = math.isfinite(value)
        if not fits or value < least or value > most:
            kind = "a finite number" if finite else "a number"
            bound = "" if least == -math.inf else f" of at least {least:g}"
            if most < math.inf:
                bound += f" and at most {most:g}"
            _refuse(value, name, kind + bound)

    return check


def boolean(value: Any, name: str) -> None:
    """A truth value."""
    if not isinstance(value, bool):
        _refuse(value, name, "true or false")


def text(value: Any, name: str) -> None:
    """A string."""
    if not isinstance(value, str):
        _refuse(value, name, "a text")


def one_of(*valid: str) -> Check:
    """One of some strings."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, str) or value not in valid:
            _refuse(value, name, f"one of {', '.join(valid)}")

    return check


def optional(inner: Check) -> Check:
    """What another check wants, or null."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            inner(value, name)

    return check


def list_of(inner: Check) -> Check:
    """A list of what another check wants."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, list):
            _refuse(value, name, "a list")
        for i, item in enumerate(value):
            inner(item, f"{name}[{i}]")

    return check


def mapping_of(inner: Check) -> Check:
    """An object of any names, each with what another check wants."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, name, "an object")
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
        if not isinstance(value, dict):
            _refuse(value, name, "an object")
        for key, inner in {**required, **(possible or {})}.items():
            if key in value:
                inner(value[key], f"{name}.{key}")
            elif key in required:
                raise Misfit(f"{name} has no {key!r}")

    return check


def _is(value: Any, kind: Any) -> bool:
    # In Python a bool is an int, too.
    return isinstance(value, kind) and not isinstance(value, bool)


def _refuse(value: Any, name: str, wanted: str) -> None:
    try:
        # Short, however much the value holds.
        shown = reprlib.repr(value)
    except ValueError:  # An integer of more digits than Python writes.
        shown = "too large"
    raise Misfit(f"{name} is {shown}, not {wanted}")
