"""Checks values against annotations.

The checks are pydantic's, in its strict mode: `True` is not a number and 1 is
not a truth value, but a whole number is a valid float. The values that pydantic
converts are not used. Nothing here imports TensorFlow, NumPy or gin.
"""

import contextlib
import functools
from collections.abc import Hashable
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainer.errors import BadValue
from trainer.values.annotations import LARGEST
from trainer.values.words import advice, describe, parts_of, shown

_STRICT = ConfigDict(
    strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
)


def check(owner: str, parameter: str, value: Any, annotation: Any) -> None:
    """Checks one value.

    Args:
        owner: the function or class that it is for.
        parameter: its parameter.
        value: what it is given.
        annotation: of the parameter.

    Raises:
        BadValue: the annotation does not admit it.
    """
    why = why_not(value, annotation)
    if why:
        raise BadValue(
            owner=owner, parameter=parameter, value=shown(value), wanted=why
        )


def why_not(value: Any, annotation: Any) -> str:
    """Returns what a value must be, `"must be ..."`; `""` if it is."""
    wanted = f"must be {describe(annotation)}"
    try:
        if _fits(value, annotation):
            return ""
    except RecursionError:
        return f"{wanted}, and not nested so deeply."
    if isinstance(value, int | float) and abs(value) > min(LARGEST):
        wanted += ", and not so large"
    # Such as a path that the system's encoding cannot hold.
    if (
        isinstance(value, str)
        and value != value.encode(errors="ignore").decode()
    ):
        wanted = "is not valid UTF-8"
    return f"{wanted}.{advice(value, annotation)}"


def _fits(value: Any, annotation: Any) -> bool:
    validate = _adapter(annotation).validate_python
    for convert in (lambda value: value, _without_numpy):
        with contextlib.suppress(ValidationError):
            validate(convert(value))
            return True
    return False


@functools.cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    # Only mypy can check protocols.
    if any(getattr(p, "_is_protocol", False) for p in parts_of(annotation)):
        annotation = Any
    return TypeAdapter(annotation, config=_STRICT)


def _without_numpy(value: Any) -> Any:
    """Returns a value with Python's numbers and truth values in it."""
    kind = type(value)
    # Not an array without dimensions, which is no key of a dict.
    is_scalar = kind.__module__ == "numpy" and isinstance(value, Hashable)
    if is_scalar and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, dict):
        pairs = value.items()
        return {_without_numpy(k): _without_numpy(v) for k, v in pairs}
    if isinstance(value, list | tuple):
        return [_without_numpy(part) for part in value]
    return value
