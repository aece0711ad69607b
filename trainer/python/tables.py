"""Tables as a notebook shows them."""

import html
from collections.abc import Iterable, Sequence
from typing import Any


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in HTML.

    Args:
        columns: their names; none for a table without a head.
        rows: of each column a value; `None` leaves the cell empty.
    """
    lines = [_row("th", columns)] if columns else []
    lines += [_row("td", row) for row in rows]
    return f"<table>{''.join(lines)}</table>"


def short(value: Any) -> str:
    """A value in a cell: a number with four digits."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(tag: str, cells: Iterable[Any]) -> str:
    shown = (f"<{tag}>{html.escape(short(one))}</{tag}>" for one in cells)
    return f"<tr>{''.join(shown)}</tr>"


class Values(dict[str, float]):
    """Values by name, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return html_table((), self.items())
