"""Puts annotations and values into words."""

import dataclasses
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bounds
from typing_extensions import Doc

from trainer.errors import did_you_mean
from trainer.values.annotations import LARGEST

_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    NoneType: "None",
}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclasses.dataclass(frozen=True)
class Suggest:
    """In an annotation: names among which one may have been meant.

    Attributes:
        names: returns them.
    """

    names: Callable[[], Iterable[str]]


def describe(annotation: Any) -> str:
    """Returns what an annotation admits, such as `"a whole number >= 1"`.

    Args:
        annotation: a type; a `Doc` in it stands for all of it.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for rule in parts[1:]:
            if isinstance(rule, Doc):
                return rule.documentation
        return _bounded(describe(parts[0]), parts[1:])
    if origin in (Union, UnionType):
        words: list[str] = []
        for part in parts:
            is_literal = get_origin(part) is Literal
            words += (
                map(repr, get_args(part)) if is_literal else [describe(part)]
            )
        return _listed(words)
    if origin is Literal:
        return _listed([repr(part) for part in parts])
    if origin in (list, Sequence):
        return f"a list, each of it {describe(parts[0])}"
    if origin in (dict, Mapping):
        key, value = map(describe, parts)
        return f"a dict from {key} to {value}"
    if origin is Callable or annotation is Callable:
        return "a function"
    name = _name(annotation)
    article = "an" if name[0] in "AEIOU" else "a"
    return _KINDS.get(annotation) or f"{article} {name} object"


def plain_type(annotation: Any) -> str:
    """Returns an annotation without bounds, such as `"int | None"`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return plain_type(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(plain_type, parts)))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin in (None, Callable):
        is_none = annotation is NoneType
        return "None" if is_none else _name(origin or annotation)
    return f"{_name(origin)}[{', '.join(map(plain_type, parts))}]"


def _bounded(kind: str, rules: Sequence[Any]) -> str:
    found = []
    for rule in rules:
        if isinstance(rule, bounds.MinLen):
            kind = kind.replace("a ", "a non-empty ", 1)
        for name, sign in _SIGNS.items():
            bound = getattr(rule, name, None)
            # The others only keep numbers within what the machine can hold.
            if bound is not None and abs(bound) not in LARGEST:
                found.append(f"{sign} {bound}")
    return f"{kind} {' and '.join(found)}" if found else kind


def _listed(words: list[str]) -> str:
    *first, last = words
    # A comma more where one of them has commas of its own.
    own = any(", " in word for word in words)
    return f"{', '.join(first)}{',' * own} or {last}" if first else last


def shown(value: Any) -> str:
    """Returns a value as one short line."""
    try:
        return _Short().repr(value)
    except ValueError:
        return "(a number with too many digits)"


class _Short(reprlib.Repr):
    """Abbreviates; names functions and classes only."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr1(self, x: Any, level: int) -> str:
        """See `reprlib.Repr`."""
        if _is_named(x):
            return _name(x)
        text = super().repr1(x, level)
        # An address says nothing.
        return f"<{_name(type(x))} object>" if " at 0x" in text else text


def advice(value: Any, annotation: Any) -> str:
    """Returns a hint at what was probably meant, after a space, or `""`."""
    parts = list(parts_of(annotation))
    choices: list[Any] = []
    for part in parts:
        if isinstance(part, Suggest):
            choices += part.names()
        if get_origin(part) is Literal:
            choices += get_args(part)
    wants_functions = any(
        part is Callable or get_origin(part) is Callable for part in parts
    )
    for leaf in leaves(value):
        if isinstance(leaf, str) and leaf not in choices:
            return did_you_mean(leaf, filter(_is_text, choices))
        is_plain = leaf is None or isinstance(leaf, bool | int | float | str)
        if wants_functions and not is_plain and not callable(leaf):
            name = type(leaf).__name__
            return f" In gin, write @{name}, without parentheses."
        if not wants_functions and _is_named(leaf):
            return f" In gin, write @{_name(leaf)}(), with parentheses."
    return ""


def leaves(value: Any) -> Iterator[Any]:
    """Yields what lists, tuples and dicts hold, at any depth."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yields an annotation and all that it consists of."""
    yield annotation
    if get_origin(annotation) not in (Callable, Literal):
        for part in get_args(annotation):
            yield from parts_of(part)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_named(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))
