"""The callback Progress: a bar, or lines where there can be none."""

import math
import sys
import time
from typing import Any

from rich.console import Console

from trainer import Callback
from trainer.plugin_api import (
    NotNegative,
    configurable,
    names_in_logs,
    peak_memory,
    say_now,
    show,
)
from trainer_plugins.callbacks.progress_bar import Bar, clock, written
from trainer_plugins.callbacks.progress_table import Table

# Logged, but too much for a line.
_HIDDEN = ("examples_per_second", "steps_per_second", "learning_rate")
# What a person calls the phases of the accounts.
_PHASES = {
    "start_up": "start-up",
    "data_wait": "waiting for data",
    "checkpoint": "checkpoints",
}


@configurable(module="trainer_plugins.callbacks")
class Progress(Callback):
    """Shows what runs, its newest values, speed and remaining time.

    On a terminal these are a bar, below a line for each evaluation; in a
    notebook a table, and elsewhere lines. A value is the mean over the steps
    or the epoch that is named beside it. A run that is started from Python has
    this callback by default; with `verbose=2` it prints a line for each epoch
    and nothing else.

    Args:
        console: where to print; standard output if not given.
        evaluation_seconds: on a terminal, the least time between two
            evaluations that are shown; the last one always is. 0 shows all.
            Loggers get all.
    """

    only_watches = True
    single = True
    by_default = True

    def __init__(
        self,
        console: Console | None = None,
        *,
        evaluation_seconds: NotNegative = 3.0,
    ) -> None:
        super().__init__()
        # FORCE_COLOR makes a pipe a terminal to rich.
        draws = None if sys.stdout.isatty() else False
        self._console = console or Console(
            force_interactive=draws, force_jupyter=False
        )
        self._is_notebook = console is None and Console().is_jupyter
        self._evaluation_seconds = evaluation_seconds
        self._bar: Bar | Table | None = None
        self._speed = ""
        # The step of the last log; `None` if an earlier attempt made it.
        self._logged: int | None = None
        # Of the evaluations that were shown last.
        self._evaluated, self._evaluated_at = -1, -math.inf

    def setup(self) -> None:
        """Says what takes a while from here on."""
        if self._is_shown and self.verbose != 2 and not self.following:
            self.run.tell = say_now
            # Another call of the same Trainer has nothing to compile.
            if not self.run.built.runners:
                say_now("compiling the step")

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Says what runs and where it begins, and starts the bar."""
        self.close()
        run = self.run
        self._logged = None if run.step else 0
        if not self._is_shown or self.verbose == 2:
            return
        self._print([run.describe()])
        name = (run.model_dir or "").removeprefix("runs/")
        if run.is_resumed:
            self._print([f"resumed from step {run.step} of run {name}"])
        assert run.steps is not None
        if run.fired_step >= run.steps:
            more = run.longer.format(2 * run.step)
            said = f"already finished at step {run.step}; for more: {more}"
            self._print([said])
            return
        if self._is_notebook:
            self._bar = Table(step=run.step, steps=run.steps)
        # It redraws itself with control codes, which would pile up in a file.
        elif self._console.is_interactive:
            self._bar = Bar(self._console, step=run.step, steps=run.steps)
        if self._bar is not None:
            self._bar.start()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.move(self.run.step)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Shows a split's values, and of which steps they are the mean."""
        if not self._is_shown or self.verbose == 2:
            return
        values = _shown(logs)
        if split != "train":
            if isinstance(self._bar, Table):
                # Where there are epochs, they are among the values of these.
                if not self.run.epochs.steps:
                    self._bar.show(f"step {step}", names_in_logs(split, values))
            elif self._bar is None or self._is_next(step):
                self._print([split, self._position(step), *written(values)])
            return
        since, self._logged = self._logged, step
        of = f"to {step}" if since is None else f"{since + 1}-{step}"
        speed, steps = logs.get("examples_per_second"), self.run.steps
        self._speed = f"{speed:,.0f} examples/s" if speed else ""
        if self._bar is None:
            shown = [f"steps {of}" + (f"/{steps}" if steps else "")]
            shown += written(values)
            if speed and steps:
                left = (steps - step) * self.run.spec.batch_size / speed
                shown += [self._speed, f"{clock(left)} left"]
            self._print(shown)
            return
        epoch = self.run.epochs.steps
        # The values of an epoch that is shorter are newer.
        if since is None or not epoch or step - since < epoch:
            self._bar.show(f"steps {of}", values, self._speed)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Shows an epoch's values, in the bar or in a line of their own."""
        values = _shown(logs or {})
        if self._bar is not None and self.run.epochs.steps:
            self._bar.show(f"epoch {epoch + 1}", values, self._speed)
        elif self._is_shown and self.verbose == 2:
            last = (self.params or {}).get("epochs")
            of = f"/{last}" if last else ""
            self._print([f"epoch {epoch + 1}{of}", *written(values)])

    def on_roll_back(self, step: int) -> None:
        """Moves the bar back."""
        self._logged = None
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

    def _is_next(self, step: int) -> bool:
        """Whether the evaluations of a step have lines above the bar."""
        now = time.monotonic()
        is_soon = now - self._evaluated_at < self._evaluation_seconds
        if is_soon and step != self._evaluated and not self.run.is_ending:
            return False
        self._evaluated, self._evaluated_at = step, now
        return True

    def _print(self, parts: list[str]) -> None:
        # In a file one log stays one line; a terminal would break words.
        wraps = self._console.is_interactive
        self._console.print(
            "  ".join(parts), markup=False, highlight=False, soft_wrap=not wraps
        )


def _shown(logs: dict[str, float]) -> dict[str, float]:
    """The values that are shown, the loss first."""
    return {
        name: logs[name]
        for name in sorted(logs, key="loss".__ne__)
        if not name.startswith(_HIDDEN)
    }


def _summary(accounts: dict[str, float]) -> list[str]:
    """Returns how the time was spent, the largest part first."""
    del accounts["goodput"]
    trained, paused = accounts.pop("step"), accounts.pop("paused")
    total = accounts.pop("total") - paused
    parts = [
        f"{_PHASES.get(name, name)} {show(seconds, 's')}"
        for name, seconds in sorted(accounts.items(), key=lambda one: -one[1])
        # Less is not worth a word.
        if seconds >= 0.01 * total
    ]
    shown = f"trained {show(trained, 's')} of {show(total, 's')}"
    pause = [f"paused {show(paused, 's')}"] if paused else []
    return [f"{shown} ({', '.join(parts)})" if parts else shown, *pause]


def _memory(peaks: dict[str, int]) -> list[str]:
    shown = [f"{where} {peak / 1e9:.2f} GB" for where, peak in peaks.items()]
    return [f"peak memory: {', '.join(shown)}"] if shown else []
