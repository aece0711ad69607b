"""A report: sections of named values, as a table and as JSON."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import rich.box
import rich.console
import rich.table

Unit: TypeAlias = Literal[
    "", "bytes", "FLOP", "FLOP/s", "bytes/s", "s", "steps/s", "examples/s", "%"
]
_MOST_COLUMNS = 6
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

    @property
    def shown(self) -> str:
        """The value for people."""
        return show(self.value, self.unit)


@dataclasses.dataclass(frozen=True)
class Section:
    """What belongs together.

    Attributes:
        title: such as `"model"`.
        rows: its values.
        table: lines of equal keys, where values are many of a kind.
        notes: sentences below it.
    """

    title: str
    rows: Sequence[Row] = ()
    table: Sequence[Mapping[str, Row]] = ()
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
    if unit in ("bytes", "bytes/s", "FLOP", "FLOP/s"):
        return _with_prefix(value, unit.replace("bytes", "B"))
    if isinstance(value, int):
        return f"{value:,} {unit}".strip()
    return f"{value:.4g} {unit}".strip()


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """The sections as one object, whose keys are the names with `_`.

    JSON has no number that is not finite: `null` stands for it.
    """
    found: dict[str, Any] = {}
    for section in sections:
        values = {_key(row): _as_json(row) for row in section.rows}
        if section.table:
            values["lines"] = [
                {_key(row): _as_json(row) for row in line.values()}
                for line in section.table
            ]
        if section.notes:
            values["notes"] = list(section.notes)
        found[_slug(section.title)] = values
    return found


def not_finite(sections: Sequence[Section]) -> list[str]:
    """A sentence on each number that is infinite or not a number."""
    return [
        f"{section.title}: {row.name} is {row.value}, which is not finite."
        for section in sections
        for line in ({row.name: row for row in section.rows}, *section.table)
        for row in line.values()
        if not _is_finite(row)
    ]


def print_sections(sections: Sequence[Section]) -> None:
    """Prints every section as a table on standard output."""
    console = rich.console.Console(highlight=False, soft_wrap=False)
    for section in sections:
        console.print(f"\n[bold]{section.title}[/bold]")
        if section.rows:
            console.print(_rows(section.rows))
        if section.table:
            console.print(_lines(section.table))
        for note in section.notes:
            console.print(note, markup=False)


def _rows(rows: Sequence[Row]) -> rich.table.Table:
    table = rich.table.Table(box=None, show_header=False, padding=(0, 1))
    for _ in range(3):
        table.add_column()
    for row in rows:
        table.add_row(*map(_plain, (row.name, row.shown, row.note)))
    return table


def _lines(lines: Sequence[Mapping[str, Row]]) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE)
    shown = [[name, *(line[name].shown for line in lines)] for name in lines[0]]
    # Many values of few things would not fit beside each other.
    if len(shown) <= _MOST_COLUMNS:
        shown = [list(column) for column in zip(*shown, strict=True)]
    for name in shown[0]:
        table.add_column(_plain(name))
    for row in shown[1:]:
        table.add_row(*map(_plain, row))
    return table


def _plain(text: str) -> Any:
    # Brackets are markup to rich.
    return rich.text.Text(text)


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
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h"


def _is_finite(row: Row) -> bool:
    return not isinstance(row.value, float) or math.isfinite(row.value)


def _as_json(row: Row) -> Any:
    return row.value if _is_finite(row) else None


def _key(row: Row) -> str:
    return _slug(row.name)


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")
