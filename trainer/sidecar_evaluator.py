"""The side-car evaluator: follows the checkpoints of a training process.

It evaluates each as it comes, and keeps the best one:

    best/step_00000100/    one checkpoint, in the same form as in checkpoints/
    best/best.json         its value, and the progress of the evaluator

The record is written last, so that an evaluator that is killed at any moment
can continue from it.
"""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
from absl import logging

from trainer.checkpoint import storage
from trainer.checkpoint.stateful import EVALUATED
from trainer.errors import UserError, nearest
from trainer.loop.callback_list import CallbackList, has_event
from trainer.loop.evaluation_sets import (
    all_in_logs,
    prefix_of,
    sets_of,
    unprefixed,
)
from trainer.loop.monitor import Monitor
from trainer.loop.reporter import Reporter
from trainer.loop.run import Run
from trainer.run_options import RunOptions
from trainer.runtime import schema
from trainer.runtime.files import make_directory, read_record, write_whole
from trainer.runtime.run_paths import prepare_directory
from trainer.values.periods import (
    Period,
    in_epochs,
    parse_length,
    parse_period,
)

# What an evaluation calls.
_EVENTS = (
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end"),
    "on_test_end",
)
_RECORD = schema.record(
    {
        "evaluated_step": schema.Count | Literal[-1],
        "monitor": str,
        "mode": Literal["min", "max"],
        "step": schema.Count | None,
        "value": schema.Number | None,
    },
    {"callbacks": dict[str, dict[str, Any]]},
)


def follow(
    run: Run, asked: RunOptions, *, is_over: Callable[[], bool]
) -> dict[str, float]:
    """Evaluates each new checkpoint of a run that another process trains.

    It always takes the newest checkpoint: of those written during an
    evaluation, the older ones are skipped. No step is evaluated twice, even
    if the evaluator is killed and restarted. The best checkpoint is kept in
    `best/`; use it with `--init_from=<model_dir>/best`.

    All sets of `eval_every` are evaluated at each of these checkpoints; their
    periods are those of the training process.

    It ends when a checkpoint of `train_steps` has been evaluated, when the run
    has ended well and its last checkpoint has been evaluated, or when there
    was no new checkpoint for `eval_timeout`.

    Callbacks that do something in `on_test_*` are called as in the training
    process, and the values that they add in `on_test_end`, or log, are kept.
    They also get `setup` and `close`, but no event of training. Callbacks that
    save are left out, and so is Keras' `TensorBoard`, as both processes would
    write to its folder.

    Every file in the run directory has one writer. The values go to the
    callbacks whose `only_watches` is set, and these then write to files of
    their own (`metrics_evaluator.jsonl`, `evaluator/`).

    Args:
        run: built; its Trainer may have a different strategy from the run
            that it follows.
        asked: the options of that run.
        is_over: whether it has ended well.

    Returns:
        The newest step and its values, those of other sets than `"eval"` as
        `rare/*`; the best step and its value.

    Raises:
        UserError: the checkpoints do not fit the model, or there was none in
            time.
    """
    assert run.model_dir is not None
    checkpoints = os.path.join(run.model_dir, "checkpoints")
    longest = parse_period(asked.eval_timeout, name="run.eval_timeout").seconds
    assert longest is not None
    last = _last_step(run, asked)
    prepare_directory(run.model_dir, "best")
    monitor = Monitor(asked.best_monitor, asked.best_mode)
    best = _Best(os.path.join(run.model_dir, "best"), monitor)
    sets = run.sets = tuple(sets_of(asked.eval_every))
    for split in sets:
        # Mistakes show up before waiting.
        run.evaluator(run.batches(split)).trace()
    _check_monitor(monitor.name, sets)
    called = _called(run, asked)
    reporter = Reporter(
        run,
        called,
        log=Period(),
        evaluations=dict.fromkeys(sets, Period()),
        eval_steps=asked.eval_steps,
    )
    evaluated: dict[str, float] = {}
    try:
        called.call("setup")
        try:
            called.load_states(best.callbacks)
        except schema.Misfit as error:
            raise UserError(f"best/best.json is damaged: {error}") from None
        waiting_since = time.monotonic()
        # From best.json, so that a restarted evaluator continues where it was.
        while best.last_step < last:
            # Checked before the listing, so that a checkpoint that was written
            # just before the end is not missed.
            over = is_over()
            snapshot = storage.load_newer(checkpoints, best.last_step)
            if snapshot is not None:
                # The optimizer's state and the callbacks' belong to the
                # training process.
                run.state.restore(snapshot, groups=EVALUATED)
                values = {split: reporter.evaluate(split) for split in sets}
                best.offer(snapshot, all_in_logs(values))
                for split, its in values.items():
                    for callback in called.ours:
                        if callback.only_watches:
                            callback.on_log(snapshot.step, split, its)
                reporter.hand_over()
                # Last: an evaluator that is killed before it repeats this step,
                # so that no log is lost.
                best.commit(called.states())
                evaluated = unprefixed(values)
                # The evaluation does not count as waiting. Another checkpoint
                # may have come meanwhile, so there is no pause either.
                waiting_since = time.monotonic()
                continue
            waited = time.monotonic() - waiting_since
            if over or waited >= longest:
                timeout = f"timeout {asked.eval_timeout}"
                why = "the run has ended" if over else timeout
                logging.info("No more checkpoints: %s.", why)
                break
            time.sleep(min(asked.eval_poll_seconds, longest - waited))
        called.call("on_done")
    finally:
        called.close()
        run.take_value = None
    # After one evaluation at least, a timeout is an ordinary end.
    if best.last_step < 0:
        raise _no_checkpoint(checkpoints, asked)
    return {"step": best.last_step} | evaluated | best.describe()


def _called(run: Run, asked: RunOptions) -> CallbackList:
    """The callbacks that take part, attached to the model."""
    called = CallbackList(list(filter(_takes_part, asked.callbacks)), run)
    for callback in called.ours:
        callback.following = True
    called.attach(run.model, {"verbose": 0, "epochs": None, "steps": None})
    return called


def _no_checkpoint(checkpoints: str, asked: RunOptions) -> UserError:
    return UserError(
        f"{checkpoints} has no usable checkpoint after {asked.eval_timeout}. "
        "Is the run training there, with @Checkpoint() in run.callbacks? "
        "run.eval_timeout sets how long to wait."
    )


def _last_step(run: Run, asked: RunOptions) -> int:
    per_epoch = None
    if in_epochs(asked.train_steps):
        per_epoch = run.batches("train").steps_per_epoch
    return parse_length(
        asked.train_steps, name="run.train_steps", steps_per_epoch=per_epoch
    )


class _Best:
    """The best checkpoint of a run, by an evaluated value.

    Args:
        directory: where it is kept; created with the first checkpoint.
        monitor: the value to compare, as `val_*`, and its direction.
    """

    def __init__(self, directory: str, monitor: Monitor) -> None:
        self._directory = directory
        self._monitor = monitor
        self._path = os.path.join(directory, "best.json")
        self._record: dict[str, Any] = {
            "evaluated_step": -1,
            "monitor": monitor.name,
            "mode": monitor.mode,
            "step": None,
            "value": None,
            "callbacks": {},
        }
        # An evaluator may have been killed while it saved.
        storage.remove_leftovers(directory)
        # An error of a remote store goes up, because starting over would lose
        # the record.
        found = read_record(
            self._path, _RECORD, aside="; the evaluator starts over"
        )
        wanted = monitor.name, monitor.mode
        by = found.get("monitor"), found.get("mode")
        # The progress still counts, but values of two kinds cannot be compared.
        if found.get("step") is not None and by != wanted:
            logging.warning(
                "%s holds the best checkpoint by %s (%s). The best by %s (%s) "
                "is searched for among newer checkpoints only.",
                *(directory, *by, *wanted),
            )
            found = {"evaluated_step": found["evaluated_step"]}
        self._record |= found

    @property
    def last_step(self) -> int:
        """The newest step that was evaluated; -1 if none was."""
        return int(self._record["evaluated_step"])

    @property
    def callbacks(self) -> dict[str, dict[str, Any]]:
        """Their states, among these the logs that could not be written."""
        return dict(self._record["callbacks"])

    def offer(
        self, snapshot: storage.Snapshot, values: dict[str, float]
    ) -> None:
        """Writes a snapshot to disk if it is the best so far.

        It takes effect only with `commit`.

        Args:
            snapshot: what was evaluated.
            values: evaluation values as `val_*`.

        Raises:
            UserError: the monitored value was not measured.
        """
        name, best = self._monitor.name, self._record["value"]
        if name not in values:
            raise UserError(
                f"run.best_monitor = {name!r} is not measured. "
                f"{nearest(name, values)}"
            )
        value = float(values[name])
        # Also of a step that is not the best: it has been evaluated.
        self._record["evaluated_step"] = snapshot.step
        # NaN is never the best value, and JSON has no infinity.
        if math.isfinite(value) and (
            best is None or self._monitor.better(value, best)
        ):
            # Beside the recorded one, which `commit` deletes only after
            # recording this one.
            storage.save(self._directory, snapshot)
            self._record |= {"step": snapshot.step, "value": value}

    def commit(self, callbacks: dict[str, dict[str, Any]]) -> None:
        """Records the best checkpoint, and deletes the previous one.

        Args:
            callbacks: their states.
        """
        self._record["callbacks"] = callbacks
        # There may be no checkpoint yet, as when the first value is NaN.
        make_directory(self._directory)
        # NumPy's numbers as plain ones.
        text = json.dumps(self._record, default=float)
        write_whole(self._path, text + "\n")
        # After the record: if the evaluator is killed here, a checkpoint too
        # many stays until the next `commit`, but never one too few.
        for path in storage.listing(self._directory):
            if self._record["step"] not in (None, storage.step_of(path)):
                storage.remove(path)

    def describe(self) -> dict[str, float]:
        """Returns `best_step` and the best value; empty if there is none."""
        step, value = self._record["step"], self._record["value"]
        if step is None:
            return {}
        return {"best_step": step, f"best_{self._monitor.name}": value}


def _check_monitor(name: str, sets: Sequence[str]) -> None:
    """Refuses a monitored name that cannot be of a set that is evaluated."""
    prefixes = [prefix_of(split) for split in sets]
    if not name.startswith(tuple(prefixes)):
        rest = name.removeprefix("val_")
        meant = " or ".join(repr(prefix + rest) for prefix in prefixes)
        raise UserError(
            f"run.best_monitor = {name!r} belongs to no set that is evaluated. "
            f"Did you mean {meant}?"
        )


def _takes_part(callback: keras.callbacks.Callback) -> bool:
    """Whether it shows values, or does something in evaluations."""
    if getattr(callback, "only_watches", False):
        return True
    saves = getattr(callback, "runs_last", False)
    # Keras' own begins files in the folder of the process that trains, and
    # TensorBoard shows only the newest one.
    if saves or isinstance(callback, keras.callbacks.TensorBoard):
        return False
    return any(has_event(callback, event) for event in _EVENTS)
