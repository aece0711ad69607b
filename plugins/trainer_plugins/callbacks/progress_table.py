"""A table that shows a run in a notebook, with curves when it is over."""

import math
import time
from typing import Any

from trainer.plugin_api import html_table

_ROWS = 20  # The newest are shown.
_SECONDS = 0.5  # Between two updates.
_COLOURS = {"loss": "#1f77b4", "val_loss": "#ff7f0e"}
_LOOK = (
    'width="480" height="160" style="margin:8px;overflow:visible" '
    'preserveAspectRatio="none" fill="none" stroke-width="2"'
)


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
        # In the units of steps and losses: SVG scales them, downwards.
        box = f"{left} {-high} {right - left or 1} {high - low or 1}"
        lines = "".join(
            f'<polyline points="{" ".join(f"{x},{-y:.6g}" for x, y in curve)}" '
            f'stroke="{_COLOURS[name]}" vector-effect="non-scaling-stroke"/>'
            for name, curve in curves.items()
        )
        names = ", ".join(
            f'<span style="color:{_COLOURS[name]}">&#9644; {name}</span>'
            for name, curve in curves.items()
            if curve
        )
        return (
            f'<svg viewBox="{box}" {_LOOK}>{lines}</svg><div>{names} from '
            f"{low:.4g} to {high:.4g}, steps {left} to {right}</div>"
        )
