"""The callback Watchdog: ends a run that hangs, so that it is restarted."""

import threading
from typing import Any

from trainer import Callback
from trainer.plugin_api import Seconds, configurable, give_up

_TICKS = 20  # Within the shortest limit.
_LONGEST_TICK = 5.0


@configurable(module="trainer_plugins.callbacks")
class Watchdog(Callback):
    """Prints all Python stacks and exits with 75 when something hangs.

    A graph call, a save or an evaluation that exceeds its limit will most
    likely never end, because of a lost file system, a device that does not
    answer, or a deadlock. A restart continues from the newest checkpoint.

    Args:
        step_seconds: the limit of one graph call, that is of
            `run.steps_per_loop` steps; the first call includes compiling.
        checkpoint_seconds: the limit of one save, also in the background.
        evaluation_seconds: the limit of one evaluation.

    Raises:
        UserError: a limit is not positive.
    """

    single = True

    def __init__(
        self,
        *,
        step_seconds: Seconds = 1200.0,
        checkpoint_seconds: Seconds = 1800.0,
        evaluation_seconds: Seconds = 3600.0,
    ) -> None:
        super().__init__()
        self._limits = {
            "step": step_seconds,
            "checkpoint": checkpoint_seconds,
            "evaluation": evaluation_seconds,
        }
        self._stopped = threading.Event()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts watching."""
        # A new one: an earlier run's thread may not have seen the old one set.
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
        # Count ticks instead of reading a clock: time while the whole process
        # is stopped (by SIGSTOP, or a sleeping laptop) is not a hang.
        ticks: dict[tuple[str, float], int] = {}
        while not stopped.wait(tick):
            doing = self.run.accounts.doing()
            # By phase and when it began: the next call of a phase counts from
            # zero.
            ticks = {one: ticks.get(one, 0) + 1 for one in doing}
            for (phase, _), count in ticks.items():
                limit = self._limits.get(phase)
                if limit is not None and count * tick > limit:
                    give_up(
                        f"a {phase} has taken more than {limit:g} s, after "
                        f"step {self.run.step}",
                        hangs=True,
                    )
