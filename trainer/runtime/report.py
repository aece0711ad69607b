"""A report: sections of named values, as a table and as JSON."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Unit: TypeAlias = Literal["", "bytes", "FLOP", "s", "steps/s", "%"]
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


@dataclasses.dataclass(frozen=True)
class Row:
    """One value.

    Attributes:
        name: such as `"trainable parameters"`.
        value: what JSON can hold; `None` where it is not known.
        unit: of a number.
        note: how it was found, or what it assumes.
    """

    name: str
    value: Any
    unit: Unit = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """Rows that belong together, under a title.

    Attributes:
        title: such as `"model"`.
        rows: its values.
        notes: sentences below it.
    """

    title: str
    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()


def show(value: Any, unit: Unit = "") -> str:
    """Writes a value as people read it: `1.5 GB`, `12,345` or `yes`."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit == "s":
        return _duration(value)
    if unit in ("bytes", "FLOP"):
        return _with_prefix(value, unit.replace("bytes", "B"))
    if isinstance(value, int):
        return f"{value:,} {unit}".strip()
    # Four digits, and no exponent where there need be none.
    written = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{written} {unit}".strip()


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """The sections as one object, whose keys are the names with `_`.

    JSON has no number that is not finite: `null` stands for it.
    """
    found: dict[str, Any] = {}
    for section in sections:
        values = {
            _slug(row.name): row.value if _is_finite(row) else None
            for row in section.rows
        }
        if section.notes:
            values["notes"] = list(section.notes)
        found[_slug(section.title)] = values
    return found


def not_finite(sections: Sequence[Section]) -> list[str]:
    """A sentence on each number that is infinite or not a number."""
    return [
        f"{section.title}: {row.name} is {row.value}, which is not finite."
        for section in sections
        for row in section.rows
        if not _is_finite(row)
    ]


def as_text(sections: Sequence[Section]) -> str:
    """The sections as people read them."""
    lines = []
    for section in sections:
        lines += ["", section.title]
        width = max((len(row.name) for row in section.rows), default=0)
        for row in section.rows:
            shown = f" {row.name:<{width}}  {show(row.value, row.unit):<12}"
            lines.append(f"{shown}  {row.note}".rstrip())
        lines += section.notes
    return "\n".join(lines)


def _with_prefix(value: float, unit: str) -> str:
    # First to three digits: 999.7 MB is 1 GB, not 1e+03 MB.
    value = float(f"{value:.3g}")
    for prefix, size in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _duration(seconds: float) -> str:
    # To three digits, as above.
    seconds = float(f"{seconds:.3g}")
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.3g} min" if minutes < 120 else f"{hours:.1f} h"


def _is_finite(row: Row) -> bool:
    return not isinstance(row.value, float) or math.isfinite(row.value)


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")
