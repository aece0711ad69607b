"""Ends a run that hangs, so that it can be started again."""

import threading
from typing import Any

import gin

from trainer import Callback, UserError
from trainer.plugin_api import give_up

_TICKS = 20  # In the shortest limit.
_LONGEST_TICK = 5.0


@gin.configurable(module="trainer_plugins.callbacks")
class Watchdog(Callback):
    """Dumps all Python stacks and exits with 75 when something hangs.

    A graph call, a save or an evaluation that takes longer than its limit
    will most likely never end: a file system that is gone, a device that
    does not answer, a deadlock. The next start goes on from the last
    checkpoint.

    Args:
        step_seconds: for one graph call, that is `run.steps_per_loop` steps;
            the first one compiles too.
        checkpoint_seconds: for one save, in the background too.
        evaluation_seconds: for one evaluation.

    Raises:
        UserError: a limit is not positive.
    """

    def __init__(
        self,
        *,
        step_seconds: float = 1200.0,
        checkpoint_seconds: float = 1800.0,
        evaluation_seconds: float = 3600.0,
    ) -> None:
        super().__init__()
        self._limits = {
            "step": step_seconds,
            "checkpoint": checkpoint_seconds,
            "evaluation": evaluation_seconds,
        }
        for name, seconds in self._limits.items():
            if seconds <= 0:
                raise UserError(
                    f"Watchdog.{name}_seconds = {seconds} must be greater "
                    "than 0."
                )
        self._stopped = threading.Event()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts watching."""
        self._stopped = threading.Event()
        threading.Thread(
            target=self._watch,
            args=(self._stopped,),
            name="watchdog",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Stops watching."""
        self._stopped.set()

    def _watch(self, stopped: threading.Event) -> None:
        tick = min(_LONGEST_TICK, min(self._limits.values()) / _TICKS)
        # Ticks, not a clock: time in which the whole process was stopped
        # (SIGSTOP, a laptop asleep) is no sign of a hang.
        ticks: dict[tuple[str, float], int] = {}
        while not stopped.wait(tick):
            doing = self.trainer.accounts.doing()
            ticks = {one: ticks.get(one, 0) + 1 for one in doing}
            for (phase, _), count in ticks.items():
                limit = self._limits.get(phase)
                if limit is not None and count * tick > limit:
                    give_up(
                        f"a {phase} has taken more than {limit:g} s, after "
                        f"step {self.trainer.step}"
                    )
