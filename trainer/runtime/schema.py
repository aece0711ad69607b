"""Checks of stored values, before anything is done with them.

A checkpoint may have been written by another version, or by somebody who
wants to do harm. A check takes a value and a name for it, and raises `Misfit`:

    check = record(
        {"best": optional(number()), "wait": integer()},
    )
    check(state, "EarlyStopping")
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Required

from annotated_types import Ge, Le, Predicate
from pydantic import AllowInfNan, TypeAdapter, ValidationError
from typing_extensions import TypedDict

WORD = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# The largest integer that every JSON reader takes for what it is.
_MOST = 2**53


class Misfit(ValueError):
    """A stored value is not what it must be; the message is a clause."""


@dataclasses.dataclass
class Check:
    """Checks values against an annotation; nothing is converted."""

    kind: Any

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    def __call__(self, value: Any, name: str) -> None:
        """Raises `Misfit` for a value that does not fit.

        Args:
            value: of a stored file.
            name: of the value, for the message.
        """
        try:
            self._adapter.validate_python(value, strict=True)
        except ValidationError as errors:
            error = errors.errors(include_url=False)[0]
            place = "".join(
                f"[{one}]" if isinstance(one, int) else f".{one}"
                for one in error["loc"]
            )
            raise Misfit(f"{name}{place}: {error['msg']}") from None


def integer(least: int = 0) -> Check:
    """An integer of at least so much; truth values are none."""
    return Check(Annotated[int, Ge(least), Le(_MOST)])


def number(
    *, least: float = -math.inf, most: float = math.inf, finite: bool = True
) -> Check:
    """A number within bounds; NaN and infinities only if not `finite`."""
    return Check(
        Annotated[float, AllowInfNan(not finite), Ge(least), Le(most)]
        if finite
        else Annotated[float, AllowInfNan(True)]
    )


def one_of(*valid: str) -> Check:
    """One of some strings."""
    return Check(Literal[valid])


boolean = Check(bool)
text = Check(str)
# What may become the name of a file or a folder.
word = Check(
    Annotated[str, Predicate(lambda text: WORD.fullmatch(text) is not None)]
)


def optional(inner: Check) -> Check:
    """What another check wants, or null."""
    return Check(inner.kind | None)


def list_of(inner: Check) -> Check:
    """A list of what another check wants."""
    return Check(list[inner.kind])  # type: ignore[name-defined]


def mapping_of(inner: Check) -> Check:
    """An object of any names, each with what another check wants."""
    return Check(dict[str, inner.kind])  # type: ignore[name-defined]


def record(
    required: Mapping[str, Check], possible: Mapping[str, Check] | None = None
) -> Check:
    """An object with certain names; others are left alone.

    Args:
        required: name to check.
        possible: checked if they are there.
    """
    fields: dict[str, Any] = {
        name: Required[one.kind] for name, one in required.items()
    }
    for name, one in (possible or {}).items():
        fields[name] = NotRequired[one.kind]
    return Check(TypedDict("Record", fields))  # type: ignore[operator]
