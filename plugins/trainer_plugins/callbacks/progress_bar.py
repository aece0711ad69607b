"""One line that says how far a run is, at any width of a terminal."""

from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderHook,
    RenderResult,
)
from rich.control import Control
from rich.progress import Progress, Task
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.text import Text

# Of the bar: what the speed leaves it, and the bounds of all.
_SHORT, _SHORTEST, _LONGEST = 10, 4, 40
_GAP = "  "


class Bar(Progress, RenderHook):
    """A line at the bottom of a terminal, below what is printed meanwhile.

    Args:
        console: the terminal.
        step: the steps that are done.
        steps: all steps.
    """

    def __init__(self, console: Console, *, step: int, steps: int) -> None:
        # The width of the line when it was last drawn.
        self.drawn = 0
        super().__init__(console=console, refresh_per_second=4)
        self._task = self.add_task(
            "train", total=steps, completed=step, of="", values=(), speed=""
        )

    def start(self) -> None:
        """Begins to draw the line."""
        super().start()
        self.console.push_render_hook(self)

    def stop(self) -> None:
        """Draws the line for the last time."""
        # It is the last one that was pushed.
        self.console.pop_render_hook()
        super().stop()

    def move(self, step: int) -> None:
        """Shows how many steps are done."""
        self.update(self._task, completed=step)

    def show(self, of: str, values: dict[str, float], speed: str) -> None:
        """Shows values but those of evaluations, of which steps, and speed."""
        names = [name for name in values if not name.startswith("val_")]
        shown = written({name: values[name] for name in names})
        self.update(self._task, of=f"{of}: ", values=shown, speed=speed)

    def get_renderables(self) -> Iterable[ConsoleRenderable]:
        """See `rich.progress.Progress`."""
        return [Line(self, task) for task in self.tasks]

    def process_renderables(
        self, renderables: list[ConsoleRenderable]
    ) -> list[ConsoleRenderable]:
        """Erases a line that a terminal has wrapped when it was made narrower.

        Rich erases one row, on which the cursor is: the last one.
        """
        rows = -(-self.drawn // self.console.width)
        up = (ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)
        erase = Control((ControlType.ERASE_IN_LINE, 2), *up * (rows - 1))
        return [erase, *renderables]


class Line(NamedTuple):
    """The line: what does not fit is left out, and nothing is cut.

    Attributes:
        bar: whose line it is.
        task: how far it is.
    """

    bar: Bar
    task: Task

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """See `rich.console.ConsoleRenderable`."""
        # A terminal writes ^C behind it, which must not begin a new row.
        task, width = self.task, max(options.max_width - len("^C"), 1)
        total = f"{task.total:.0f}"
        count = f"{task.completed:>{len(total)}.0f}/{total}"
        left = f"{_GAP}{clock(task.time_remaining)} left"
        line = Text(no_wrap=True, overflow="crop", end="")
        line.append(count, "progress.download")
        line.append(left, "progress.remaining")
        of = task.fields["of"]
        for value in task.fields["values"]:
            if line.cell_len + cell_len(_GAP + of + value) <= width:
                line.append(_GAP + of + value)
                of = ""
        # A bar says more.
        speed = _GAP + task.fields["speed"]
        if line.cell_len + len(speed + _GAP) + _SHORT <= width:
            line.append(speed)
        yield line
        self.bar.drawn = min(line.cell_len, options.max_width)
        length = min(width - line.cell_len - len(_GAP), _LONGEST)
        if length >= _SHORTEST:
            self.bar.drawn += len(_GAP) + length
            yield Text(_GAP, end="")
            yield ProgressBar(task.total, task.completed, width=length)


def clock(seconds: float | None) -> str:
    """Formats seconds as `m:ss`, or as `h:mm:ss` from one hour on."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def written(values: dict[str, float]) -> list[str]:
    """Values as they are shown."""
    return [f"{name} {_number(value)}" for name, value in values.items()]


def _number(value: float) -> str:
    small_or_large = value != 0 and not 1e-3 <= abs(value) < 1e6
    return f"{value:.3e}" if small_or_large else f"{value:.4f}"
