"""The callback EarlyStopping: ends training that no longer improves."""

import math
from typing import Any

from absl import logging

from trainer import Callback
from trainer.plugin_api import (
    Direction,
    Monitor,
    NotNegative,
    Positive,
    Text,
    configurable,
    names_in_logs,
    schema,
)

_STATE = schema.record(
    {
        "best": schema.Number | None,
        "best_step": schema.Count | None,
        "wait": schema.Count,
    }
)


@configurable(module="trainer_plugins.callbacks")
class EarlyStopping(Callback):
    """Stops after `patience` evaluations in a row without improvement.

    Args:
        monitor: the value to watch. `"val_loss"` is the loss of the eval
            split, compared at each evaluation, and `"val_rare/loss"` that
            of the evaluation set `"rare"`; `"loss"` is the loss of the train
            split, compared at each training log.
        mode: `"min"`, `"max"`, or `"auto"` to infer it from the name.
        patience: evaluations in a row without improvement before stopping.
        min_delta: the smallest change that counts as an improvement.

    Raises:
        UserError: an argument is invalid, or `"auto"` does not know the
            name.
    """

    def __init__(
        self,
        monitor: Text = "val_loss",
        *,
        mode: Direction = "auto",
        patience: Positive = 3,
        min_delta: NotNegative = 0.0,
    ) -> None:
        super().__init__()
        self.patience = patience
        self.min_delta = min_delta
        self._monitor = Monitor(monitor, mode)
        self.best: float | None = None
        self.best_step: int | None = None
        self.wait = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops a resumed run at once if it had stopped before."""
        self._stop_if_done()

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Compares the watched value with the best so far."""
        # `on_log` names the split; monitors use Keras' names, as in `fit`.
        value = self._monitor.value(names_in_logs(split, logs))
        if value is None:
            return
        # NaN is never the best value, and JSON cannot hold infinity.
        if math.isfinite(value) and (
            self.best is None
            or self._monitor.better(value, self.best, self.min_delta)
        ):
            self.best, self.best_step, self.wait = value, step, 0
        else:
            self.wait += 1
        self._stop_if_done()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Warns if the watched value was never logged."""
        # A value that was seen but never finite counts as waiting.
        if self.best is None and not self.wait:
            logging.warning(
                "EarlyStopping never saw %s, because it was never logged.",
                self._monitor.name,
            )

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {
            "best": self.best,
            "best_step": self.best_step,
            "wait": self.wait,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        _STATE(state, "EarlyStopping")
        self.best, self.best_step = state["best"], state["best_step"]
        self.wait = state["wait"]

    def _stop_if_done(self) -> None:
        if self.wait >= self.patience:
            best = "none" if self.best is None else f"{self.best:.6g}"
            self.run.stop(
                f"{self._monitor.name} has not improved {self.wait} times in a "
                f"row; best: {best} at step {self.best_step}"
            )
