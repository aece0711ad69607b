"""Checks of stored values, before anything is done with them.

A checkpoint may have been written by a different version, or by someone who
wants to do harm. A check takes a value and a name for it, and raises `Misfit`:

    check = record({"best": Number | None, "wait": Count})
    check(state, "EarlyStopping")
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, Required, TypeAlias

from annotated_types import Ge, Le, Predicate
from pydantic import AllowInfNan, TypeAdapter, ValidationError
from typing_extensions import TypedDict

WORD = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# Up to the largest integer that every JSON reader takes for what it is.
Count: TypeAlias = Annotated[int, Ge(0), Le(2**53)]
Positive: TypeAlias = Annotated[Count, Ge(1)]
Number: TypeAlias = Annotated[float, AllowInfNan(False)]
# What may become the name of a file or a folder.
Word: TypeAlias = Annotated[
    str, Predicate(lambda text: WORD.fullmatch(text) is not None)
]


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


def record(
    required: Mapping[str, Any], possible: Mapping[str, Any] | None = None
) -> Check:
    """Checks an object with certain names; others are left alone.

    Args:
        required: name to annotation.
        possible: checked if they are there.
    """
    fields = {name: Required[one] for name, one in required.items()}
    for name, one in (possible or {}).items():
        fields[name] = NotRequired[one]
    return Check(TypedDict("Record", fields))  # type: ignore[operator]
