"""Annotations of parameters as JSON: a type with its bounds, as data."""

import os
import types
from collections.abc import Callable, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt, MinLen
from typing_extensions import Doc

_PLAIN: dict[str, Any] = {
    "Any": Any,
    "None": type(None),
    "bool": bool,
    "float": float,
    "int": int,
    "str": str,
    "...": ...,
}
_GENERIC: dict[str, Any] = {
    "Callable": Callable,
    "PathLike": os.PathLike,
    "Sequence": Sequence,
    "dict": dict,
    "list": list,
    "tuple": tuple,
}
# Constraints, and the field of each.
_BOUNDS: dict[str, tuple[Any, str]] = {
    "Doc": (Doc, "documentation"),
    "Ge": (Ge, "ge"),
    "Gt": (Gt, "gt"),
    "Le": (Le, "le"),
    "Lt": (Lt, "lt"),
    "MinLen": (MinLen, "min_length"),
}


def to_data(annotation: Any) -> Any:
    """An annotation as a structure of lists and plain values.

    Raises:
        ValueError: it holds anything but the types and constraints above.
    """
    if isinstance(annotation, list):  # The parameters of a Callable.
        return ["parameters", *map(to_data, annotation)]
    if annotation is None:
        return "None"
    origin = get_origin(annotation)
    if origin is None:
        for name, one in _PLAIN.items():
            if annotation is one:
                return name
        raise ValueError(f"{annotation!r} has no form in JSON.")
    if origin is Annotated:
        inner, *bounds = get_args(annotation)
        return ["Annotated", to_data(inner), *map(_bound_to_data, bounds)]
    if origin is Literal:
        return ["Literal", *get_args(annotation)]
    parts = map(to_data, get_args(annotation))
    if origin in (Union, types.UnionType):
        return ["Union", *parts]
    for name, one in _GENERIC.items():
        if origin is get_origin(one) or origin is one:
            return [name, *parts]
    raise ValueError(f"{annotation!r} has no form in JSON.")


def from_data(data: Any) -> Any:
    """The annotation that `to_data` made a structure of.

    Raises:
        KeyError, TypeError, ValueError: it is not such a structure.
    """
    if isinstance(data, str):
        return _PLAIN[data]
    kind, *parts = data
    if kind == "Literal":
        return Literal[tuple(parts)]
    if kind == "Annotated":
        bounds = [_BOUNDS[name][0](value) for name, value in parts[1:]]
        return Annotated[(from_data(parts[0]), *bounds)]
    found = tuple(map(from_data, parts))
    if kind == "parameters":
        return list(found)
    if kind == "Union":
        return Union[found]  # noqa: UP007 - not all of them know `|`
    return _GENERIC[kind][found]


def _bound_to_data(bound: Any) -> list[Any]:
    for name, (kind, field) in _BOUNDS.items():
        value = getattr(bound, field, None)
        if type(bound) is kind and isinstance(value, int | float | str):
            return [name, value]
    raise ValueError(f"{bound!r} has no form in JSON.")
