"""A table that shows a run in a notebook, with curves when it is over."""

import math
import time
from typing import Any

from trainer.plugin_api import html_table

_ROWS = 20  # The newest are shown.
_SECONDS = 0.5  # Between two updates.
_COLOURS = {"loss": "#1f77b4", "val_loss": "#ff7f0e"}
_WIDTH, _HEIGHT, _EDGE = 480, 160, 16


class Table:
    """A row for each epoch or log, updated in place.

    Args:
        step: the steps that are done.
        steps: all steps.
    """

    def __init__(self, *, step: int, steps: int) -> None:
        self._step, self._steps = step, steps
        self._rows: list[tuple[str, int, dict[str, float]]] = []
        self._updated = 0.0

    def start(self) -> None:
        """Shows the table in the output of the cell."""
        # Not at the top: it is there only in a notebook.
        from IPython import display

        self._html: Any = display.HTML
        self._shown: Any = display.display(self._html(""), display_id=True)

    def move(self, step: int) -> None:
        """Shows how many steps are done."""
        self._step = step
        if time.monotonic() - self._updated >= _SECONDS:
            self._update()

    def show(self, of: str, values: dict[str, float], speed: str = "") -> None:
        """Adds values, and of which steps or epoch they are."""
        self._rows.append((of, self._step, values))
        self.move(self._step)

    def stop(self) -> None:
        """Shows all that is known, and the losses as curves."""
        self._update(self._curves())

    def _update(self, below: str = "") -> None:
        self._updated = time.monotonic()
        newest = self._rows[-_ROWS:]
        names = dict.fromkeys(name for *_, row in newest for name in row)
        rows = [(of, *map(row.get, names)) for of, _, row in newest]
        done = (
            f'<progress value="{self._step}" max="{self._steps}"></progress> '
            f"{self._step}/{self._steps}"
        )
        self._shown.update(
            self._html(done + html_table(("", *names), rows) + below)
        )

    def _curves(self) -> str:
        """The losses over the steps, as SVG."""
        curves = {
            name: [
                (step, row[name])
                for _, step, row in self._rows
                if math.isfinite(row.get(name, math.nan))
            ]
            for name in _COLOURS
        }
        points = [point for curve in curves.values() for point in curve]
        if len(points) < 2:
            return ""
        (left, right), (low, high) = (
            (min(axis), max(axis)) for axis in zip(*points, strict=True)
        )
        across = (_WIDTH - 2 * _EDGE) / ((right - left) or 1)
        up = (_HEIGHT - 2 * _EDGE) / ((high - low) or 1)
        lines, names = [], []
        for name, curve in curves.items():
            places = " ".join(
                f"{_EDGE + (x - left) * across:.1f},"
                f"{_HEIGHT - _EDGE - (y - low) * up:.1f}"
                for x, y in curve
            )
            style = f'fill="none" stroke="{_COLOURS[name]}" stroke-width="2"'
            lines.append(f'<polyline points="{places}" {style}/>')
            if curve:
                colour = f'style="color:{_COLOURS[name]}"'
                names.append(f"<span {colour}>&#9644; {name}</span>")
        return (
            f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(lines)}</svg>'
            f"<div>{' '.join(names)}, from {low:.4g} to {high:.4g}, over steps "
            f"{left} to {right}</div>"
        )
