"""Saves and restores a run."""

import concurrent.futures
import os
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from trainer import Callback, Monitor, UserError, checkpoints, state
from trainer.period import Ticker

_DEFAULT_STEPS = 1000  # Between saves, where epochs are not known.


@gin.configurable(module="plugins.callbacks")
class Checkpoint(Callback):
    """Keeps a run's whole state in `model_dir/checkpoints`.

    At the start it restores the newest usable checkpoint there. Saving copies
    nothing but what training overwrites meanwhile, and writes in the
    background.

    Args:
        every: the period of saves, such as `500`, `"2 epochs"` or `"10m"`;
            defaults to each epoch, or 1,000 steps where epochs are unknown.
            The end of training is saved too.
        keep_last: how many of the newest checkpoints stay.
        keep_best: how many of the best stay besides.
        monitor: the value that says which are best, such as
            `"val_accuracy"`.
        mode: `"min"`, `"max"`, or `"auto"` to tell by the name.
        asynchronous: write while training goes on.

    Raises:
        UserError: an argument is not valid.
    """

    runs_last = True

    def __init__(
        self,
        *,
        every: int | str | None = None,
        keep_last: int = 3,
        keep_best: int = 0,
        monitor: str = "val_loss",
        mode: str = "auto",
        asynchronous: bool = True,
    ) -> None:
        super().__init__()
        if keep_last < 1:
            raise UserError(
                f"Checkpoint.keep_last = {keep_last} must be at least 1."
            )
        self._every = every
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._monitor = Monitor(monitor, mode) if keep_best else None
        self._asynchronous = asynchronous
        self._values: dict[int, float] = {}
        self._saved_step: int | None = None
        self._writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._writing: concurrent.futures.Future[None] | None = None

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        assert self.trainer.model_dir is not None
        return os.path.join(self.trainer.model_dir, "checkpoints")

    def setup(self) -> None:
        """Restores the run's newest usable checkpoint."""
        loop = self.trainer.loop
        assert loop is not None
        if self.trainer.model_dir is None:
            raise UserError("Checkpoint needs a model_dir to save to.")
        every = self._every
        if every is None:
            every = "1 epoch" if loop.steps_per_epoch else _DEFAULT_STEPS
        self._ticker = Ticker(
            loop.period(every, "Checkpoint.every"),
            self.trainer.plugin.any_process,
        )
        if self.trainer.plugin.is_chief:
            checkpoints.remove_leftovers(self.directory)
        if state.restore_newest(self.trainer, self.directory):
            logging.info("Resuming at step %d.", self.trainer.step)
            self._saved_step = self.trainer.step
        self._ticker.start(self.trainer.step)

    def next_due(self, step: int) -> int | None:
        """See `Callback.next_due`."""
        return self._ticker.next_step(step)

    def on_save(self, step: int, logs: dict[str, float]) -> None:
        """Saves when the period has passed."""
        if self._ticker.due(step):
            self._save(logs)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Saves the end, and waits until it is on disk."""
        if self._saved_step != self.trainer.step:
            self._save(logs or {})
        self._wait()
        # No process goes on to read what the chief is still writing.
        self.trainer.plugin.any_process(False)

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {"values": {str(k): v for k, v in self._values.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        self._values = {int(k): v for k, v in state["values"].items()}

    def close(self) -> None:
        """Waits for a save that is under way."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _save(self, logs: dict[str, float]) -> None:
        step = self.trainer.step
        if self._monitor is not None:
            value = self._monitor.value(logs)
            if value is not None:
                self._values[step] = value
        self._saved_step = step
        if not self.trainer.plugin.is_chief:
            return
        snapshot = state.capture(self.trainer)
        # One save at a time: the next one waits for a slow disk.
        self._wait()
        self._writing = self._writer.submit(self._write, snapshot)
        if not self._asynchronous:
            self._wait()

    def _write(self, snapshot: checkpoints.Snapshot) -> None:
        checkpoints.save(self.directory, snapshot)
        self._prune()

    def _wait(self) -> None:
        """Waits for the writer; a save that failed is a warning.

        Training goes on without it: the last complete checkpoint stays, and
        the next save tries again.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except (OSError, tf.errors.OpError) as error:
            self._saved_step = None
            logging.warning("A checkpoint could not be saved: %s", error)

    def _prune(self) -> None:
        """Deletes what is neither among the newest nor among the best."""
        paths = checkpoints.listing(self.directory)
        kept = set(paths[-self._keep_last :])
        if self._monitor is not None:
            by_step = {checkpoints.step_of(path): path for path in paths}
            known = {
                step: value
                for step, value in self._values.items()
                if step in by_step
            }
            best = self._monitor.best_first(known)[: self._keep_best]
            kept |= {by_step[step] for step in best}
        for path in paths:
            if path not in kept:
                checkpoints.remove(path)
