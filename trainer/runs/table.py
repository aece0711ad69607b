"""The table of runs on a terminal."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import rich.box
import rich.measure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.runs.comparing import Comparison
from trainer.runs.reading import Run
from trainer.runs.series import last
from trainer.runtime.charts import bar

_UNLIMITED = 10_000
_MOST_CHARACTERS = 60
_MOST_DIFFERENCES = 12
_STYLES = {
    "done": "green",
    "running": "cyan",
    "killed": "yellow",
    "start_again": "yellow",
    "interrupted": "yellow",
}


class _Layout(NamedTuple):
    """What is left out where the terminal is narrow.

    Attributes:
        curve: how many characters wide the sparkline is; 0 for none.
        last: whether the last value is shown beside the best.
        columns: whether each parameter that differs has a column, and not a
            place in a table below.
    """

    curve: int
    last: bool
    columns: bool


# From wide to narrow; the first that fits is taken.
_LAYOUTS = (
    _Layout(20, True, True),
    _Layout(10, False, True),
    _Layout(20, True, False),
    _Layout(10, False, False),
    _Layout(0, False, False),
)


def print_table(comparison: Comparison, console: Console) -> None:
    """Prints the runs, as wide as the console allows, and notes on them."""
    names = [n for n in comparison.differences if not _is_told(n, comparison)]
    draws = (console.encoding or "").lower().startswith("utf")
    unlimited = console.options.update(max_width=_UNLIMITED)
    for layout in _LAYOUTS:
        shown = layout if draws else layout._replace(curve=0)
        table = _table(comparison, shown, names)
        wide = rich.measure.Measurement.get(console, unlimited, table)
        if wide.maximum <= console.width:
            break
    console.print(table)
    if names and not shown.columns:
        console.print(_differences(comparison, names))
    for run in comparison.runs:
        for note in run.notes:
            console.print(_text(f"{run.name}: {note}"), style="dim")


def sparkline(values: Mapping[int, float], width: int) -> str:
    """Draws values from left to right; a gap is one that is not finite."""
    numbers = [values[step] for step in sorted(values)]
    if len(numbers) > width:
        # The last one of each part, so that the end is the end.
        parts = range(1, width + 1)
        numbers = [numbers[part * len(numbers) // width - 1] for part in parts]
    finite = [n for n in numbers if math.isfinite(n)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)

    def drawn(number: float) -> str:
        if not math.isfinite(number):
            return " "
        if not span:
            return bar(0.0)
        # Half of each, as their difference may be too large for a float.
        return bar((number / 2 - low / 2) / (span / 2))

    return "".join(map(drawn, numbers))


def _is_told(name: str, comparison: Comparison) -> bool:
    """Whether the names of the runs hold a parameter."""
    short = name.rpartition(".")[2]
    return all(
        f"{short}={_literal(value)}" in re.split("[,/]", run.name)
        for run, value in zip(
            comparison.runs, comparison.differences[name], strict=True
        )
    )


def _table(
    comparison: Comparison, layout: _Layout, names: Sequence[str]
) -> Table:
    table = Table(box=rich.box.SIMPLE, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    metric = comparison.metric
    if metric is not None:
        table.add_column(_text(metric), justify="right", no_wrap=True)
        table.add_column("at", justify="right", no_wrap=True)
        if layout.last:
            table.add_column("last", justify="right", no_wrap=True)
        if layout.curve:
            table.add_column("curve", no_wrap=True)
    names = names if layout.columns else []
    for name in names:
        table.add_column(_text(_short(name)), no_wrap=True)
    for number, run in enumerate(comparison.runs):
        cells = [_text(run.name), _state(run), _text(_count(run.step))]
        if metric is not None:
            cells += _values(comparison, run, layout)
        cells += [
            _text(_literal(comparison.differences[name][number]))
            for name in names
        ]
        table.add_row(*cells)
    return table


def _differences(comparison: Comparison, names: Sequence[str]) -> Table:
    """What has no room beside the values."""
    table = Table(box=rich.box.SIMPLE, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("what differs", overflow="fold")
    left = len(names) - _MOST_DIFFERENCES
    for number, run in enumerate(comparison.runs):
        pairs = [
            f"{_short(name)}={_literal(comparison.differences[name][number])}"
            for name in names[:_MOST_DIFFERENCES]
            if comparison.differences[name][number]
        ]
        if left > 0:
            pairs.append(f"and {left} more, see --json")
        table.add_row(_text(run.name), _text("  ".join(pairs)))
    return table


def _values(comparison: Comparison, run: Run, layout: _Layout) -> list[Text]:
    values = run.series.get(comparison.metric or "", {})
    best = comparison.best(run)
    cells = [Text("-"), Text("")]
    if best is not None:
        cells = [Text(f"{best[1]:.4g}"), Text(_count(best[0]))]
    if layout.last:
        cells.append(Text(f"{last(values)[1]:.4g}" if values else "-"))
    if layout.curve:
        cells.append(Text(sparkline(values, layout.curve)))
    return cells


def _state(run: Run) -> Text:
    text = _text(run.state.replace("_", " "))
    text.stylize(_STYLES.get(run.state, "red"))
    return text


def _count(step: int | None) -> str:
    return "-" if step is None else f"{step:,}"


def _short(name: str) -> str:
    """A parameter with the class or function that it belongs to."""
    scope, slash, selector = name.rpartition("/")
    return scope + slash + ".".join(selector.split(".")[-2:])


def _literal(value: str) -> str:
    """A gin value, cut, and without the quotes of a plain string."""
    inner = value[1:-1]
    is_plain = value[:1] in ("'", '"') and value[:1] == value[-1:]
    shown = inner if is_plain and value[0] not in inner else value
    if len(shown) <= _MOST_CHARACTERS:
        return shown
    return f"{shown[: _MOST_CHARACTERS - 1]}…"


def _text(text: str) -> Text:
    # Brackets are markup to rich. Names and messages are in other people's
    # files, and could contain what controls a terminal.
    shown = (c if c.isprintable() else "?" for c in text)
    return Text("".join(shown))


def summary(empty: Sequence[str], notes: Sequence[str]) -> list[Text]:
    """Lines on what was found beside runs."""
    lines = [*notes]
    if empty:
        named = ", ".join(empty[:3])
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        lines.append(f"No run in: {named}{more}.")
    return [_text(line) for line in lines]
