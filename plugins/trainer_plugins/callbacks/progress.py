"""The callback Progress: a live bar on a terminal, plain lines elsewhere."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from trainer import Callback
from trainer.plugin_api import configurable, peak_memory

# Logged, but too much for a line.
_HIDDEN = ("examples_per_second", "steps_per_second", "learning_rate")


@configurable(module="trainer_plugins.callbacks")
class Progress(Callback):
    """Prints progress, newest values, speed and remaining training time.

    The remaining time counts training only, without evaluations, checkpoints
    and the first graph call, which includes compiling.

    Args:
        console: where to print; standard output if not given.
    """

    only_watches = True
    single = True

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console()
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._pace = Pace()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the bar."""
        self._pace = Pace()
        # A bar redraws itself with control codes, which would pile up in a
        # file.
        if not self._console.is_terminal or not self._is_chief:
            return
        self.close()
        self._bar = Bar(
            TextColumn("train"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            # To rich, brackets in a metric's name would be markup.
            TextColumn("{task.fields[values]}", markup=False),
            console=self._console,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(
            "train", total=self._total, completed=self.trainer.step, values=""
        )
        self._bar.start()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Starts the clock."""
        self._pace.begin(self.trainer.step)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Stops the clock and moves the bar."""
        self._pace.end(self.trainer.step)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.trainer.step)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Shows a split's values."""
        if not self._is_chief:
            return
        where = f"step {self._position(step)}"
        if split != "train":
            self._print([split, where, *_values(logs)])
            return
        shown = _values(logs) + _speed(logs) + self._remaining(step)
        if self._bar is None:
            self._print([where, *shown])
        else:
            self._bar.update(self._task, values="  ".join(shown))

    def on_roll_back(self, step: int) -> None:
        """Moves the bar back."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Removes the bar; prints why training ended early, and its cost."""
        self.close()
        reason = self.trainer.stop_reason
        if reason and self._is_chief:
            where = f"step {self._position(self.trainer.step)}"
            self._print(["stopped", where, reason])
        if self._is_chief:
            closing = _summary(self.trainer.accounts.summary())
            self._print([*closing, *_memory(peak_memory())])

    def close(self) -> None:
        """Restores the terminal's cursor and ends the line."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    @property
    def _is_chief(self) -> bool:
        return self.trainer.plugin.is_chief

    @property
    def _total(self) -> int | None:
        """The step at which training ends; `None` outside training."""
        loop = self.trainer.loop
        return None if loop is None else loop.steps

    def _position(self, step: int) -> str:
        return f"{step}/{self._total}" if self._total else str(step)

    def _remaining(self, step: int) -> list[str]:
        pace = self._pace.seconds_per_step
        if pace is None or self._total is None:
            return []
        return [f"eta {_clock(pace * (self._total - step))}"]

    def _print(self, parts: list[str]) -> None:
        # Never wrapped: one log stays one line, however narrow the console.
        self._console.print(
            "  ".join(parts), markup=False, highlight=False, soft_wrap=True
        )


class Pace:
    """Measures the time per training step, without the first graph call."""

    def __init__(self) -> None:
        self._steps = 0
        self._seconds = 0.0
        self._first_step = 0
        self._begin = 0.0
        self._compiled = False

    @property
    def seconds_per_step(self) -> float | None:
        """The mean; `None` before the end of the second graph call."""
        return self._seconds / self._steps if self._steps else None

    def begin(self, step: int) -> None:
        """Marks the start of a graph call, after `step` steps."""
        self._first_step = step
        self._begin = time.perf_counter()

    def end(self, step: int) -> None:
        """Marks the end of the graph call, after `step` steps."""
        if self._compiled:
            self._seconds += time.perf_counter() - self._begin
            self._steps += step - self._first_step
        self._compiled = True


def _values(logs: dict[str, float]) -> list[str]:
    return [
        f"{name} {_number(value)}"
        for name, value in logs.items()
        if not name.startswith(_HIDDEN)
    ]


def _summary(accounts: dict[str, float]) -> list[str]:
    """Returns how the time was spent, the largest part first."""
    total, goodput = accounts["total"], accounts["goodput"]
    parts = {
        name: seconds / total
        for name, seconds in accounts.items()
        if name not in ("total", "goodput")
    }
    largest = sorted(parts, key=lambda name: -parts[name])
    shown = ", ".join(
        f"{name.replace('_', ' ')} {parts[name]:.0%}"
        for name in largest
        # Less would show as 0%.
        if parts[name] >= 0.005
    )
    return [f"goodput {goodput:.0%} of {_clock(total)}", f"({shown})"]


def _memory(peaks: dict[str, int]) -> list[str]:
    shown = [f"{where} {peak / 1e9:.2f} GB" for where, peak in peaks.items()]
    return [f"peak memory: {', '.join(shown)}"] if shown else []


def _number(value: float) -> str:
    small_or_large = value != 0 and not 1e-3 <= abs(value) < 1e6
    return f"{value:.3e}" if small_or_large else f"{value:.4f}"


def _speed(logs: dict[str, float]) -> list[str]:
    speed = logs.get("examples_per_second")
    return [] if speed is None else [f"{speed:.0f} examples/s"]


def _clock(seconds: float) -> str:
    """Formats seconds as `m:ss`, or as `h:mm:ss` from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"
