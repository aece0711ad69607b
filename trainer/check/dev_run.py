"""`fast_dev_run`: two steps of all that a run does, in a scratch folder."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from trainer.check.rehearsal import try_checkpoint
from trainer.checkpoint.stateful import usable
from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.loop.loop import FitEpochs, Loop
from trainer.loop.running_trainer import RunningTrainer
from trainer.runtime.report import Row, Section

STEPS = 2
# Keras' callbacks that write, and the attribute that says where.
_WRITERS = (
    (keras.callbacks.ModelCheckpoint, "filepath"),
    (keras.callbacks.CSVLogger, "filename"),
    (keras.callbacks.TensorBoard, "log_dir"),
)


def loop_of_dev_run(
    trainer: RunningTrainer,
    *,
    evaluate: bool,
    folder: str,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: int = 1,
) -> Loop:
    """A host loop with one epoch of two steps, at which everything is due.

    Args:
        trainer: whose run is tried.
        evaluate: whether the run evaluates.
        folder: in place of the run directory.
        callbacks: those of the run.
        verbose: see `trainer.loop.loop.Loop`.
    """
    return Loop(
        trainer,
        steps=STEPS,
        fit=FitEpochs(1, steps_per_epoch=STEPS),
        evaluate=evaluate,
        model_dir=folder,
        callbacks=callbacks,
        steps_per_loop=1,
        log_every=1,
        eval_steps=STEPS,
        verbose=verbose,
    )


@contextlib.contextmanager
def writing_to(
    folder: str, callbacks: Sequence[keras.callbacks.Callback]
) -> Iterator[None]:
    """Lets callbacks of Keras' own classes write to a folder.

    At the end, all callbacks have the attributes that they have now. Ours
    write to the run directory, which the folder stands for.
    """
    before = [(callback, dict(vars(callback))) for callback in callbacks]
    for callback in callbacks:
        for kind, attribute in _WRITERS:
            if isinstance(callback, kind):
                path = os.fspath(getattr(callback, attribute))
                place = os.path.join(folder, "keras")
                os.makedirs(place, exist_ok=True)
                name = os.path.basename(os.path.normpath(path))
                setattr(callback, attribute, os.path.join(place, name))
    try:
        yield
    finally:
        for callback, attributes in before:
            vars(callback).clear()
            vars(callback).update(attributes)


def finish_dev_run(
    trainer: RunningTrainer, loop: Loop, values: dict[str, float], folder: str
) -> Section:
    """Saves, restores and compares what a dev run has trained.

    Args:
        trainer: has made the steps.
        loop: has made them.
        values: what it returned.
        folder: see `loop_of_dev_run`.

    Returns:
        What was done.

    Raises:
        UserError: a checkpoint cannot be restored.
    """
    rows = [
        Row("steps made", STEPS),
        Row("batches evaluated", STEPS if loop.sets else 0, note="at most"),
        *(Row(name, value) for name, value in values.items()),
    ]
    if trainer.plugin.is_chief:
        saved = os.path.join(folder, "checkpoints")
        if loop.callbacks.save and next(usable(saved), None) is None:
            raise UserError(
                "A callback saves, but left no checkpoint that can be read."
            )
        rows += try_checkpoint(trainer, os.path.join(folder, "saved")).rows
    exporters = [c for c in loop.callbacks.ours if hasattr(c, "export")]
    # Before this, at the end of training, they have exported or failed.
    names = ", ".join(type(callback).__name__ for callback in exporters)
    rows += [
        Row("exported by", names or "no callback"),
        Row("callbacks", ", ".join(map(_name, loop.callbacks.all)) or "none"),
    ]
    return Section("fast_dev_run", rows, notes=list(_notes(loop)))


def _notes(loop: Loop) -> Iterator[str]:
    own = [c for c in loop.callbacks.all if not _is_redirected(c)]
    if own:
        yield (
            f"{', '.join(map(_name, own))}: not of this project nor of Keras. "
            "If it writes outside of trainer.model_dir, it did so here, too."
        )
    yield "The run directory was not touched."


def _is_redirected(callback: keras.callbacks.Callback) -> bool:
    if isinstance(callback, Callback):
        return True
    return type(callback).__module__.partition(".")[0] == "keras" and (
        # It sends what it sees to a server.
        not isinstance(callback, keras.callbacks.RemoteMonitor)
    )


def _name(callback: Any) -> str:
    return type(callback).__name__
