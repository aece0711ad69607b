"""Saves and restores a run."""

import concurrent.futures
import os
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from trainer import Callback, UserError
from trainer.plugin_api import (
    REFUSALS,
    Monitor,
    Staging,
    Ticker,
    atomic_files,
    schema,
    storage,
)

_DEFAULT_STEPS = 1000  # Between saves, where epochs are not known.
_STATE = schema.record(
    {"values": schema.mapping_of(schema.number(finite=False))}
)


@gin.configurable(module="trainer_plugins.callbacks")
class Checkpoint(Callback):
    """Keeps a run's whole state in `model_dir/checkpoints`.

    At the start it restores the newest usable checkpoint there. Saving copies
    nothing but what training overwrites meanwhile, and writes in the
    background. A save that fails is a warning, and the next one tries again;
    only the end must be saved.

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
        self._staging = Staging() if asynchronous else None
        self._values: dict[int, float] = {}
        self._saved_step: int | None = None
        self._saved_as_over = True
        self._saved_digests: dict[str, str] | None = None
        self._has_written = False
        self._failure: str | None = None
        self._writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._writing: concurrent.futures.Future[None] | None = None

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        assert self.trainer.model_dir is not None
        return os.path.join(self.trainer.model_dir, "checkpoints")

    def setup(self) -> None:
        """Restores the run's newest usable checkpoint.

        Raises:
            UserError: there is nowhere to save, or `checkpoints/` is a link.
        """
        loop = self.trainer.loop
        assert loop is not None
        if self.trainer.model_dir is None:
            raise UserError("Checkpoint needs a model_dir to save to.")
        if self.trainer.plugin.is_chief:
            atomic_files.prepare_directory(
                self.trainer.model_dir, "checkpoints"
            )
        every = self._every
        if every is None:
            every = "1 epoch" if loop.steps_per_epoch else _DEFAULT_STEPS
        self._ticker = Ticker(
            loop.period(every, "Checkpoint.every"),
            self.trainer.plugin.any_process,
        )
        if self.trainer.plugin.is_chief:
            storage.remove_leftovers(self.directory)
        if self.trainer.state.restore_newest(self.directory):
            logging.info("Resuming at step %d.", self.trainer.step)
            # One that was left before its events is saved again after them.
            if loop.state.unfired_from is None:
                self._note_saved(over=loop.is_ending)
        self._ticker.start(loop.fired_step)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Takes memory for the first save, in the background."""
        if self._staging is not None and self.trainer.plugin.is_chief:
            specs = self.trainer.state.specs()
            self._writing = self._writer.submit(self._staging.reserve, specs)

    def next_due(self, step: int) -> int | None:
        """See `Callback.next_due`."""
        return self._ticker.next_step(step)

    def on_save(self, step: int, logs: dict[str, float]) -> None:
        """Saves when the period has passed, or somebody asks for it."""
        loop = self.trainer.loop
        assert loop is not None
        # The end too: what others do there may fail.
        ending = loop.is_ending
        if self._ticker.due(step) or loop.save_now or ending:
            self._save(logs, over=ending)

    def on_leave(self, step: int) -> None:
        """Saves, and waits until it is on disk.

        If that fails, the next attempt begins at an earlier checkpoint.
        """
        self._wait()
        if self._saved_step != step:
            # Without values: those of this step are not known yet.
            self._save({})
        self._finish()

    def on_divergence(self, step: int) -> None:
        """Waits for a save that is under way."""
        self._finish()

    def on_roll_back(self, step: int) -> None:
        """Goes on as after a start, without the checkpoints passed over."""
        assert self.trainer.loop is not None
        self._ticker.start(self.trainer.loop.fired_step)
        self._saved_step = step
        if self.trainer.plugin.is_chief:
            for path in storage.listing(self.directory):
                if storage.step_of(path) > step:
                    storage.remove(path)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Saves the end, and waits until it is on disk.

        Raises:
            UserError: it could not be written: the run is not done.
        """
        self._wait()
        if not self._end_is_saved():
            self._save(logs or {}, over=True)
        if not self._finish():
            raise UserError(self._why_not_done())

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {"values": {str(k): v for k, v in self._values.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        _STATE(state, "Checkpoint")
        self._values = {int(k): v for k, v in state["values"].items()}

    def close(self) -> None:
        """Waits for a save that is under way."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _note_saved(self, *, over: bool) -> None:
        """Remembers what has been saved, to tell at the end if it is all."""
        self._saved_step = self.trainer.step
        self._saved_as_over = over
        loop = self.trainer.loop
        assert loop is not None
        if over and loop.callbacks.keras_has("on_train_end"):
            self._saved_digests = self.trainer.state.digests()

    def _end_is_saved(self) -> bool:
        """Whether nothing has changed since, such as to the best weights."""
        if self._saved_step != self.trainer.step or not self._saved_as_over:
            return False
        saved = self._saved_digests
        return saved is None or saved == self.trainer.state.digests()

    def _finish(self) -> bool:
        """Waits until the chief has written; whether it could."""
        self._wait()
        # No process goes on to read what the chief is still writing.
        return not self.trainer.plugin.any_process(self._saved_step is None)

    def _why_not_done(self) -> str:
        paths = storage.listing(self.directory)
        newest = storage.step_of(paths[-1]) if paths else "none"
        return (
            f"The end of the run, step {self.trainer.step}, could not be "
            f"saved: {self._failure or 'see the log of the chief'}. Newest "
            f"checkpoint in {self.directory}: {newest}. Make room there, or "
            "make it writable, and start the same command again."
        )

    def _save(self, logs: dict[str, float], *, over: bool = False) -> None:
        with self.trainer.accounts.phase("checkpoint"):
            self._start_saving(logs, over=over)

    def _start_saving(self, logs: dict[str, float], *, over: bool) -> None:
        # One save at a time: the next one waits for a slow disk.
        self._wait()
        step = self.trainer.step
        if self._monitor is not None:
            value = self._monitor.value(logs)
            if value is not None:
                self._values[step] = value
        if not self.trainer.plugin.is_chief:
            self._saved_step = step
            return
        self._note_saved(over=over)
        snapshot = self.trainer.state.capture(over=over)
        if self._staging is not None:
            snapshot = self._staging.copy(snapshot)
        self._writing = self._writer.submit(self._write, snapshot)
        if not self._asynchronous:
            self._wait()

    def _write(self, snapshot: storage.Snapshot) -> None:
        with self.trainer.accounts.aside("checkpoint"):
            if self._has_written and not tf.io.gfile.isdir(self.directory):
                logging.warning(
                    "%s has vanished; it is made anew.", self.directory
                )
            storage.save(self.directory, snapshot)
            self._has_written = True
            try:
                self._prune(snapshot.step)
            except REFUSALS as error:
                logging.warning("Old checkpoints stay: %s", error)

    def _wait(self) -> None:
        """Waits for the writer; a save that failed is a warning.

        Training goes on without it: the last complete checkpoint stays, and
        the next save tries again.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            with self.trainer.accounts.phase("checkpoint"):
                writing.result()
        except REFUSALS as error:
            self._saved_step = None
            self._failure = str(error)
            logging.warning("A checkpoint could not be saved: %s", error)

    def _prune(self, step: int) -> None:
        """Deletes what is neither among the newest nor among the best."""
        # Later ones were passed over as damaged: they keep nobody's place.
        paths = [
            path
            for path in storage.listing(self.directory)
            if storage.step_of(path) <= step
        ]
        kept = set(paths[-self._keep_last :])
        if self._monitor is not None:
            by_step = {storage.step_of(path): path for path in paths}
            known = {
                step: value
                for step, value in self._values.items()
                if step in by_step
            }
            best = self._monitor.best_first(known)[: self._keep_best]
            kept |= {by_step[step] for step in best}
        for path in paths:
            if path not in kept:
                storage.remove(path)
