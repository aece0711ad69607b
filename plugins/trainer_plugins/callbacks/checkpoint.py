"""The callback Checkpoint: saves a run and restores it."""

import concurrent.futures
import math
import os
import time
from typing import Any

from absl import logging

from trainer import Callback, UserError
from trainer.plugin_api import (
    Direction,
    Monitor,
    Natural,
    PeriodLike,
    Positive,
    Text,
    Ticker,
    Time,
    configurable,
    names_in_logs,
    parse_period,
    run_paths,
    schema,
    storage,
)

_DEFAULT_STEPS = 1000  # Between saves, if the length of an epoch is unknown.
# By default a save waits for as long after the last one: where an epoch takes a
# second, most of the time would go into saving.
_DEFAULT_SECONDS = 30.0
# Not only finite values: a diverging run has a NaN loss, and continues with it.
_STATE = schema.record({"values": dict[str, float]})


@configurable(module="trainer_plugins.callbacks")
class Checkpoint(Callback):
    """Keeps a run's whole state in `model_dir/checkpoints`.

    Restores the newest usable checkpoint at the start. A save copies only what
    training overwrites meanwhile, and writes in the background. A failed save
    is a warning, and the next one tries again; only the last one must
    succeed.

    Args:
        every: the period of saves, such as `500`, `"2 epochs"` or `"10m"`;
            defaults to each epoch, or 1,000 steps if epochs are unknown, but
            not within 30 seconds of the last save. The end of training is
            always saved.
        keep_last: how many of the newest checkpoints to keep.
        keep_best: how many of the best checkpoints to keep in addition. A
            checkpoint has the value of its own step, and one of the best is
            saved when it is measured.
        monitor: the value by which to choose the best, such as
            `"val_accuracy"`.
        mode: `"min"`, `"max"`, or `"auto"` to infer it from the name.
        load_best: whether to load the weights of the best checkpoint once
            nothing is left to train; `keep_best` is then at least 1.
            `--mode=eval` and `--mode=export` use them, too.
        asynchronous: whether to write while training continues, which needs
            memory for one more copy of the state.
        give_up_after: a time such as `"2h"` in which no checkpoint could be
            written, after which the run ends instead of training on for
            nothing; by default it never does.

    Raises:
        UserError: an argument is invalid.
    """

    runs_last = True
    single = True

    def __init__(
        self,
        *,
        every: PeriodLike | None = None,
        keep_last: Positive = 3,
        keep_best: Natural = 0,
        monitor: Text = "val_loss",
        mode: Direction = "auto",
        load_best: bool = False,
        asynchronous: bool = True,
        give_up_after: Time | None = None,
    ) -> None:
        super().__init__()
        self._every = every
        self._keep_last = keep_last
        self._keep_best = max(keep_best, int(load_best))
        self._monitor = Monitor(monitor, mode) if self._keep_best else None
        self._load_best = load_best
        self._best_is_loaded = False
        # The step at which the monitored value was logged.
        self._logged_step: int | None = None
        self._asynchronous = asynchronous
        self._give_up_after = give_up_after
        self._give_up_seconds = _seconds(give_up_after)
        # When the last checkpoint was written, or the run began.
        self._written_at = 0.0
        self._values: dict[int, float] = {}
        self._saved_step: int | None = None
        self._saved_at = 0.0
        self._saved_as_over = True
        self._failure: str | None = None
        # A single thread: saves must reach the disk in their order.
        self._writer = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._writing: concurrent.futures.Future[None] | None = None

    @property
    def directory(self) -> str:
        """The directory of the checkpoints."""
        assert self.run.model_dir is not None
        return os.path.join(self.run.model_dir, "checkpoints")

    def setup(self) -> None:
        """Restores the run's newest usable checkpoint.

        Raises:
            UserError: there is no `model_dir`, or `checkpoints/` is a link.
        """
        run = self.run
        self._best_is_loaded = False
        if run.model_dir is None:
            raise UserError("Checkpoint needs a model_dir to save to.")
        # One process alone: several would race to set the same thing aside.
        if run.plugin.is_chief:
            run_paths.prepare_directory(run.model_dir, "checkpoints")
            # The run's lock is held by now, so no process is still writing one
            # of these.
            storage.remove_leftovers(self.directory)
        every = self._every
        if every is None:
            every = "1 epoch" if run.epochs.steps else _DEFAULT_STEPS
        period = run.period(every, "Checkpoint.every")
        self._ticker = Ticker(period, run.plugin.any_process)
        if run.state.restore_newest(self.directory):
            run.is_resumed = True
            # A run that left before the events of its step saves it again
            # after them, because callbacks change their state there.
            if run.unfired_from is None:
                self._saved_step, self._saved_as_over = run.step, run.is_ending
        # Not from the present step: what an earlier attempt left unfired is
        # still due.
        self._ticker.start(run.fired_step)
        self._written_at = self._saved_at = time.monotonic()

    def next_due(self, step: int) -> int | None:
        """See `Callback.next_due`."""
        return self._ticker.next_step(step)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Records of which step the monitored value is."""
        name = None if self._monitor is None else self._monitor.name
        if name in names_in_logs(split, logs):
            self._logged_step = step

    def on_save(self, step: int, logs: dict[str, float]) -> None:
        """Saves when the period has passed, or a save was requested.

        If the best weights are loaded in the end, it also saves when the value
        has improved.
        """
        run = self.run
        # Save before `on_train_end`, because another callback may fail there.
        ending = run.is_ending
        due = self._ticker.due(step) and not self._is_too_soon()
        if due or run.save_now or ending or self._is_among_best(logs):
            self._save(logs, over=ending)

    def on_leave(self, step: int) -> None:
        """Saves, and waits until the checkpoint is on disk.

        If that fails, the next attempt starts from an earlier checkpoint.
        """
        # First: a save of this very step may be under way, and if it fails, it
        # has to be made again.
        self._wait()
        if self._saved_step != step:
            # Without values, because this step has not been evaluated yet.
            self._save({})
        self._finish()

    def on_divergence(self, step: int) -> None:
        """Waits for the current save."""
        self._finish()

    def on_roll_back(self, step: int) -> None:
        """Continues as after a start, and removes later checkpoints."""
        self._ticker.start(self.run.fired_step)
        self._saved_step = step
        if self.run.plugin.is_chief:
            for path in storage.listing(self.directory):
                # Restoring has passed it over, and its steps are run again.
                if storage.step_of(path) > step:
                    storage.remove(path)

    def before_end(self, logs: dict[str, float]) -> None:
        """Saves the end of training, then loads the best weights.

        Raises:
            UserError: the end could not be written, so the run is not done.
        """
        if self._load_best:
            self._save_end(logs)
            self.load_best_weights()
            self._best_is_loaded = True

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Saves the end of training, and waits until it is on disk.

        Raises:
            UserError: it could not be written, so the run is not done.
        """
        # The weights in memory are then the best, not those of the end.
        if not self._best_is_loaded:
            self._save_end(logs or {})

    def load_best_weights(self) -> None:
        """Loads the weights of the best checkpoint, if requested."""
        if not self._load_best:
            return
        assert self._monitor is not None
        paths = {storage.step_of(p): p for p in storage.listing(self.directory)}
        name, values = self._monitor.name, self._finite_values()
        for step in self._monitor.best_first(values):
            if step not in paths:
                continue
            try:
                self.run.state.restore_weights(storage.load(paths[step]))
            except (UserError, ValueError) as error:
                logging.warning("Skipping the best checkpoint. %s", error)
                continue
            logging.info(
                "Loaded the best weights: %s = %.6g at step %d.",
                name,
                values[step],
                step,
            )
            return
        logging.warning(
            "There is no checkpoint with a finite %s: the weights are those "
            "of step %d.",
            name,
            self.run.step,
        )

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        # JSON has no integer keys.
        return {"values": {str(k): v for k, v in self._values.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        _STATE(state, "Checkpoint")
        self._values = {int(k): v for k, v in state["values"].items()}

    def close(self) -> None:
        """Waits for the current save."""
        try:
            self._wait()
        finally:
            self._writer.shutdown()

    def _is_too_soon(self) -> bool:
        """Whether a save that was not requested can wait for another one."""
        # The best of many is only found among what is saved.
        if self._every is not None or self._monitor is not None:
            return False
        passed = time.monotonic() - self._saved_at >= _DEFAULT_SECONDS
        # By their clocks, processes would decide differently.
        return not self.run.plugin.any_process(passed)

    def _finite_values(self) -> dict[int, float]:
        return {k: v for k, v in self._values.items() if math.isfinite(v)}

    def _is_among_best(self, logs: dict[str, float]) -> bool:
        """Whether this step was measured and is good enough to keep."""
        if self._monitor is None:
            return False
        step, value = self.run.step, self._value(logs)
        is_one = False
        if value is not None and math.isfinite(value):
            best = self._monitor.best_first(
                {**self._finite_values(), step: value}
            )
            is_one = step in best[: self._keep_best]
        # All must save, or none.
        return self.run.plugin.any_process(is_one)

    def _value(self, logs: dict[str, float]) -> float | None:
        """The monitored value, if it is that of the weights of this step."""
        if self._monitor is None or self._logged_step != self.run.step:
            return None
        return self._monitor.value(logs)

    def _save_end(self, logs: dict[str, float]) -> None:
        """Saves the end unless it is saved, and waits until it is on disk.

        Raises:
            UserError: it could not be written.
        """
        self._wait()
        # Keras' `EarlyStopping` may restore the best weights at the end.
        is_saved = self._saved_step == self.run.step and self._saved_as_over
        if self.run.keras_ends or not is_saved:
            self._save(logs, over=True)
        if not self._finish():
            raise self._not_saved(
                f"The end of the run, step {self.run.step}, could not be saved"
            )

    def _not_saved(self, what: str) -> UserError:
        paths = storage.listing(self.directory)
        newest = storage.step_of(paths[-1]) if paths else "none"
        return UserError(
            f"{what}: {self._failure or 'see the log of the chief'}. Newest "
            f"checkpoint in {self.directory}: {newest}. Make room there, "
            "or make it writable, and run the same command again."
        )

    def _finish(self) -> bool:
        """Waits until the chief has written; returns whether it succeeded."""
        self._wait()
        # A barrier: no process may continue, and read what the chief is still
        # writing.
        return not self.run.plugin.any_process(self._saved_step is None)

    def _save(self, logs: dict[str, float], *, over: bool = False) -> None:
        """Takes a snapshot, and begins to write it."""
        run = self.run
        with run.accounts.phase("checkpoint"):
            # One save at a time, so that a slow disk does not pile up copies
            # in memory.
            self._wait()
            waited = time.monotonic() - self._written_at
            # Only the chief writes, and its end is that of all.
            if self._failure is not None and waited > self._give_up_seconds:
                raise self._not_saved(
                    "No checkpoint could be saved for "
                    f"Checkpoint.give_up_after = {self._give_up_after!r}"
                )
            self._saved_at = time.monotonic()
            value = self._value(logs)
            if value is not None:
                self._values[run.step] = value
            # Noted before it is written: `_wait` takes it back if that fails.
            # The other processes only take part in decisions about saving.
            self._saved_step, self._saved_as_over = run.step, over
            if run.plugin.is_chief:
                snapshot = run.state.capture(over=over)
                self._writing = self._writer.submit(self._write, snapshot)
                if not self._asynchronous:
                    self._wait()

    def _write(self, snapshot: storage.Snapshot) -> None:
        # The time is that of training, but the watchdog must see a save that
        # hangs.
        with self.run.accounts.aside("checkpoint"):
            # It counts the lines in them: after a power cut they must be there.
            self.run.synchronize()
            storage.save(self.directory, snapshot)
            try:
                # The new checkpoint is on disk: an old one that stays is no
                # failed save.
                self._prune(snapshot.step)
            except OSError as error:
                logging.warning(
                    "Old checkpoints could not be removed: %s", error
                )

    def _wait(self) -> None:
        """Waits for the writer; a failed save is a warning.

        Training continues without it: the last complete checkpoint is kept,
        and the next save tries again.
        """
        # Taken first: a failure is reported once, not at each later wait.
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            with self.run.accounts.phase("checkpoint"):
                writing.result()
            self._failure = None
            self._written_at = time.monotonic()
        except OSError as error:
            # Nothing counts as saved now, so the end will be saved again.
            self._saved_step = None
            self._failure = str(error)
            logging.warning("A checkpoint could not be saved: %s", error)

    def _prune(self, step: int) -> None:
        """Removes checkpoints that are neither new nor good enough to keep."""
        # Later ones were found damaged at the start. They do not count, and
        # must not displace usable ones.
        paths = {
            storage.step_of(path): path
            for path in storage.listing(self.directory)
            if storage.step_of(path) <= step
        }
        kept = {*list(paths)[-self._keep_last :]}
        if self._monitor is not None:
            known = {k: v for k, v in self._values.items() if k in paths}
            kept |= {*self._monitor.best_first(known)[: self._keep_best]}
            self._values = {k: v for k, v in known.items() if k in kept}
        for one, path in paths.items():
            if one not in kept:
                storage.remove(path)


def _seconds(time_: str | None) -> float:
    """The length of a time; without end for `None`."""
    if time_ is None:
        return math.inf
    found = parse_period(time_, name="Checkpoint.give_up_after").seconds
    assert found is not None
    return found
