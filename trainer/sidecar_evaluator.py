"""The side-car evaluator: follows the checkpoints of a training process."""

import os
import time
from collections.abc import Callable, Mapping, Sequence

import keras
from absl import logging

from trainer.best_checkpoint import Best
from trainer.checkpoint import contents, storage
from trainer.checkpoint.stateful import EVALUATED
from trainer.errors import UserError
from trainer.loop.callback_list import CallbackList, has_event
from trainer.loop.evaluation_sets import (
    EVAL,
    all_in_logs,
    prefix_of,
    sets_of,
    unprefixed,
)
from trainer.loop.monitor import Monitor
from trainer.loop.reporter import Reporter
from trainer.loop.run import Run
from trainer.options import EvalEvery
from trainer.runtime.run_paths import prepare_directory
from trainer.values.annotations import Direction, Positive, Seconds, Text
from trainer.values.configurable import checked
from trainer.values.keras_values import Callbacks
from trainer.values.periods import Period, Time, parse_period

# What an evaluation calls.
_EVENTS = (
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end"),
    "on_test_end",
)


@checked
def follow(
    run: Run,
    *,
    train_steps: Positive,
    eval_every: EvalEvery | None = None,
    eval_steps: Positive | None = None,
    callbacks: Callbacks = (),
    timeout: Time = "1h",
    poll_seconds: Seconds = 10.0,
    monitor: Text = "val_loss",
    monitor_mode: Direction = "auto",
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Evaluates each new checkpoint of a run that another process trains.

    It always takes the newest checkpoint: of those written during an
    evaluation, the older ones are skipped. No step is evaluated twice, even
    if the evaluator is killed and restarted. The best checkpoint is kept in
    `best/`, see `trainer.best_checkpoint`; use it with
    `--init_from=<model_dir>/best`.

    All sets of `eval_every` are evaluated at each of these checkpoints; their
    periods are those of the training process.

    It ends when a checkpoint of `train_steps` has been evaluated, when the run
    has ended well and its last checkpoint has been evaluated, or when there
    was no new checkpoint for `timeout`.

    Callbacks that do something in `on_test_*` are called as in the training
    process, and what they add to the values in `on_test_end`, or log, is kept.
    Of the other events they get `setup` and `close`, but none of training.
    Callbacks that save are left out, and Keras' `TensorBoard`, as both
    processes would write to its folder.

    Every file in the run directory has one writer. The values go to the
    callbacks whose `only_watches` is set, and these then write to files of
    their own (`metrics_evaluator.jsonl`, `tensorboard/evaluator`).

    Most arguments are those of `run` in a gin file; `monitor` is its
    `best_monitor`. The Trainer may have another strategy than that of the run.

    Returns:
        The newest step and its values, those of other sets than `"eval"` as
        `rare/*`; the best step and its value.

    Raises:
        UserError: an argument is invalid, the checkpoints do not fit the
            model, or there was none in time.
    """
    # Long by its parameters, which `run.*` of a gin file sets.
    model_dir = run.model_dir
    assert model_dir is not None
    longest = parse_period(timeout, name="run.eval_timeout").seconds
    assert longest is not None, timeout
    prepare_directory(model_dir, "best")
    best = Best(os.path.join(model_dir, "best"), Monitor(monitor, monitor_mode))
    sets = run.sets = tuple(sets_of(eval_every))
    for split in sets:
        # Mistakes show up before waiting.
        run.evaluator(run.batches(split)).trace()
    _check_monitor(monitor, run, sets)
    called = CallbackList(list(filter(_takes_part, callbacks)), run)
    for callback in called.ours:
        callback.following = True
    called.attach(run.model, {"verbose": 0, "epochs": None, "steps": None})
    reporter = Reporter(
        run,
        called,
        log=Period(),
        evaluations=dict.fromkeys(sets, Period()),
        eval_steps=eval_steps,
    )
    evaluated: dict[str, float] = {}
    try:
        called.call("setup")
        waiting_since = time.monotonic()
        # From best.json, so that a restarted evaluator goes on where it was.
        while best.last_step < train_steps:
            # Checked before the listing, so that a checkpoint that was written
            # just before the end is not missed.
            over = is_over()
            snapshot = storage.load_newer(
                os.path.join(model_dir, "checkpoints"),
                best.last_step,
                contents.check,
            )
            if snapshot is not None:
                values = {}
                # The optimizer's state and the callbacks' belong to the
                # training process.
                run.state.restore(snapshot, groups=EVALUATED)
                for split in sets:
                    values[split] = reporter.evaluate(split)
                _note(snapshot, values, best, called)
                reporter.hand_over()
                # Last: an evaluator that is killed before it repeats this step,
                # so that no log is lost.
                best.commit()
                evaluated = unprefixed(values)
                # The evaluation does not count as waiting. Another checkpoint
                # may have come meanwhile, so there is no pause either.
                waiting_since = time.monotonic()
                continue
            waited = time.monotonic() - waiting_since
            if over or waited >= longest:
                why = "the run has ended" if over else f"timeout {timeout}"
                logging.info("No more checkpoints: %s.", why)
                break
            time.sleep(min(poll_seconds, longest - waited))
    finally:
        called.close()
        run.take_value = None
    # After one evaluation at least, a timeout is an ordinary end.
    if best.last_step < 0:
        raise UserError(
            f"{model_dir}/checkpoints has no usable checkpoint after "
            f"{timeout}. Is the run training there, with @Checkpoint() in "
            "run.callbacks? run.eval_timeout sets how long to wait."
        )
    return {"step": best.last_step} | evaluated | best.describe()


def _note(
    snapshot: storage.Snapshot,
    values: Mapping[str, dict[str, float]],
    best: Best,
    called: CallbackList,
) -> None:
    """Keeps the snapshot if it is the best, and logs its values by split."""
    best.offer(snapshot, all_in_logs(values))
    for split, its in values.items():
        for callback in called.ours:
            if callback.only_watches:
                callback.on_log(snapshot.step, split, its)


def _check_monitor(name: str, run: Run, sets: Sequence[str]) -> None:
    """Refuses a monitored name of a set that is not evaluated."""
    split = name.removeprefix("val_").partition("/")[0]
    # A metric may have a slash in its name, too.
    own = any(m.startswith(f"{split}/") for m in run.parts.metrics.measures)
    is_of_eval = EVAL in sets and ("/" not in name or own)
    if not (name.startswith("val_") and (is_of_eval or split in sets)):
        prefixes = [prefix_of(one) for one in sets]
        meant = " or ".join(repr(prefix + name) for prefix in prefixes)
        raise UserError(
            f"run.best_monitor = {name!r} is not of a set that is evaluated. "
            + (
                f"It must begin with {', '.join(prefixes)}."
                if name.startswith("val_")
                else f"Did you mean {meant}?"
            )
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
