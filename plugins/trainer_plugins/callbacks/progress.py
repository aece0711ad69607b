"""The callback Progress: a bar, or lines where there can be none."""

import importlib.util
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
    """Shows what runs, its newest values, speed and remaining time.

    The remaining time is that of training at its newest speed, without
    evaluations and checkpoints. A bar in a notebook needs the package
    ipywidgets. A run that is started from Python has this callback by default;
    with `verbose=2` it prints a line for each epoch and nothing else.

    Args:
        console: where to print; standard output if not given.
    """

    only_watches = True
    single = True
    by_default = True

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console()
        # Lines are text in a notebook, too.
        self._lines = (
            Console(force_jupyter=False)
            if self._console.is_jupyter
            else self._console
        )
        self._bar: Bar | None = None
        self._task = TaskID(0)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the bar."""
        self.close()
        if not self._is_shown or self.verbose == 2:
            return
        self._print([self.run.describe()])
        # A bar redraws itself with control codes, which would pile up in a
        # file; in a notebook, rich needs a widget for it.
        draws = self._console.is_terminal
        if self._console.is_jupyter:
            draws = importlib.util.find_spec("ipywidgets") is not None
        if not draws:
            return
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
            "train", total=self.run.steps, completed=self.run.step, values=""
        )
        self._bar.start()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.run.step)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Shows a split's values."""
        if not self._is_shown or self.verbose == 2:
            return
        where, shown = self._position(step), _values(logs)
        if split != "train":
            self._print([split, where, *shown])
            return
        shown += self._speed(step, logs)
        if self._bar is None:
            self._print([where, *shown])
        else:
            self._bar.update(self._task, values="  ".join(shown))

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Shows an epoch's values, in the bar or in a line of their own."""
        shown = _values(logs or {})
        if self._bar is not None:
            self._bar.update(self._task, values="  ".join(shown))
        elif self._is_shown and self.verbose == 2:
            last = (self.params or {}).get("epochs")
            of = f"/{last}" if last else ""
            self._print([f"epoch {epoch + 1}{of}", *shown])

    def on_roll_back(self, step: int) -> None:
        """Moves the bar back."""
        self.on_train_batch_end(step)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the bar; prints why training ended early, and its cost."""
        self.close()
        if not self._is_shown:
            return
        if self.run.stop_reason:
            where = self._position(self.run.step)
            self._print(["stopped", where, self.run.stop_reason])
        if self.verbose != 2:
            closing = _summary(self.run.accounts.summary())
            self._print([*closing, *_memory(peak_memory())])

    def close(self) -> None:
        """Restores the terminal's cursor and ends the line."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    @property
    def _is_shown(self) -> bool:
        return self.run.plugin.is_chief

    def _position(self, step: int) -> str:
        # There is no last step outside training.
        return f"step {step}" + (f"/{self.run.steps}" if self.run.steps else "")

    def _speed(self, step: int, logs: dict[str, float]) -> list[str]:
        speed = logs.get("examples_per_second")
        if not speed or self.run.steps is None:
            return []
        left = (self.run.steps - step) * self.run.spec.batch_size
        return [f"{speed:.0f} examples/s", f"eta {_clock(left / speed)}"]

    def _print(self, parts: list[str]) -> None:
        # Never wrapped: one log stays one line, however narrow the console.
        self._lines.print(
            "  ".join(parts), markup=False, highlight=False, soft_wrap=True
        )


def _values(logs: dict[str, float]) -> list[str]:
    return [
        f"{name} {_number(value)}"
        for name, value in logs.items()
        if not name.startswith(_HIDDEN)
    ]


def _summary(accounts: dict[str, float]) -> list[str]:
    """Returns how the time was spent, the largest part first."""
    total, goodput = accounts.pop("total"), accounts.pop("goodput")
    shown = ", ".join(
        f"{name.replace('_', ' ')} {seconds / total:.0%}"
        for name, seconds in sorted(accounts.items(), key=lambda one: -one[1])
        # Less would show as 0%.
        if seconds >= 0.005 * total
    )
    return [f"goodput {goodput:.0%} of {_clock(total)}", f"({shown})"]


def _memory(peaks: dict[str, int]) -> list[str]:
    shown = [f"{where} {peak / 1e9:.2f} GB" for where, peak in peaks.items()]
    return [f"peak memory: {', '.join(shown)}"] if shown else []


def _number(value: float) -> str:
    small_or_large = value != 0 and not 1e-3 <= abs(value) < 1e6
    return f"{value:.3e}" if small_or_large else f"{value:.4f}"


def _clock(seconds: float) -> str:
    """Formats seconds as `m:ss`, or as `h:mm:ss` from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"
