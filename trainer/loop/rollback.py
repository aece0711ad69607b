"""What a run does when its guard has found a bad step."""

import datetime
import json
import math
import os
from typing import TYPE_CHECKING, Any

from absl import logging

from trainer.checkpoint import schema, storage
from trainer.checkpoint.stateful import check_alike, restore_newest
from trainer.data.batches import Batches
from trainer.data.skip_batches import SteppingOver, position_of
from trainer.errors import Diverged, UserError
from trainer.runtime.atomic_files import (
    exists,
    read_json,
    set_aside,
    write_whole,
)
from trainer.step.divergence_guard import Fault

if TYPE_CHECKING:
    from trainer.loop.loop import Loop
    from trainer.trainer import Trainer

FILE_NAME = "skipped_batches.json"
_ENTRY = schema.record(
    {},
    {
        "batch": schema.integer(),
        "batch_size": schema.optional(schema.integer(1)),
    },
)
_CONTENT = schema.record({"skipped": schema.list_of(_ENTRY)})


class Skipped:
    """The batches that a run steps over, as its directory says.

    `skipped_batches.json` is what counts: read at each start, and after each
    rollback, by every process. An entry without a `"batch"` tells of a
    strategy under which it is not known which batch a step took. One of
    another batch size counts as a rollback, and steps over nothing: its
    number means other examples now. A file that is damaged counts as none.

    Args:
        model_dir: where the run lives; `None` skips nothing.
        batch_size: that of the training data now, global; `None` if unknown.

    Attributes:
        fault: what is wrong with the file; `None` if nothing is.
    """

    def __init__(self, model_dir: str | None, batch_size: int | None) -> None:
        self._path = os.path.join(model_dir or "", FILE_NAME)
        self.batch_size = batch_size
        self.entries: list[dict[str, Any]] = []
        self.positions: list[int] = []
        self.fault: str | None = None
        if model_dir is None or not exists(self._path):
            return
        try:
            content = read_json(self._path)
            _CONTENT(content, "it")
        except ValueError as error:
            self.fault = str(error)
            return
        self.entries = content["skipped"]
        self.positions = [
            entry["batch"]
            for entry in self.entries
            if "batch" in entry and entry.get("batch_size") == batch_size
        ]

    def mend(self) -> None:
        """Sets the file aside if it is damaged; for the chief alone.

        Raises:
            UserError: the file system refused.
        """
        if self.fault is not None:
            set_aside(
                self._path,
                f"{self.fault}; batches that it listed are no longer "
                "stepped over",
            )
            self.fault = None

    @property
    def of_another_size(self) -> int:
        """How many entries tell of batches of another size."""
        known = sum("batch" in entry for entry in self.entries)
        return known - len(self.positions)

    def add(self, entry: dict[str, Any]) -> None:
        """Writes the file with one more entry; for the chief alone."""
        self.mend()
        content = {"skipped": [*self.entries, entry]}
        write_whole(self._path, json.dumps(content, indent=1) + "\n")


def without_skipped(trainer: "Trainer", batches: Batches) -> Batches:
    """The training batches that are left, as the run directory says."""
    skipped = Skipped(trainer.model_dir, batches.batch_size)
    positions = skipped.positions
    if others := skipped.of_another_size:
        logging.warning(
            "%d of the batches in %s are not stepped over: they were found "
            "with another batch_size than %s.",
            others,
            FILE_NAME,
            batches.batch_size,
        )
    if not positions or not trainer.plugin.options.batches_by_step:
        return batches
    return SteppingOver(batches, positions)


def check_way_back(loop: "Loop") -> None:
    """Checks that a guard which rolls back finds checkpoints.

    Raises:
        UserError: nobody saves any.
    """
    guard = loop.trainer.guard
    if guard is None or not guard.rolls_back:
        return
    if loop.trainer.model_dir is None or not loop.callbacks.save:
        raise UserError(
            "Guard.action = 'roll_back' needs checkpoints to go back to: add "
            "@Checkpoint() to run.callbacks, and set --model_dir; or choose "
            "'stop'."
        )


def save_beginning(loop: "Loop") -> None:
    """Gives a run that may go back something to go back to."""
    trainer = loop.trainer
    if trainer.guard is None or not trainer.guard.rolls_back:
        return
    nothing = not trainer.step or not storage.listing(_directory(trainer))
    if trainer.plugin.any_process(nothing):
        loop.save_now = True
        loop.callbacks.call("on_save", trainer.step, dict(loop.reports.logs))


def go_back(loop: "Loop", fault: Fault) -> None:
    """Restores the newest checkpoint, to go on without the batch at fault.

    All processes of a run call this at the same step.

    Raises:
        Diverged: the guard says stop, the run has gone back too often, or
            there is nothing to go back to.
    """
    trainer, guard = loop.trainer, loop.trainer.guard
    assert guard is not None
    assert trainer.parts.watch is not None
    # Saves that are under way come to their end, in all processes.
    loop.callbacks.call("on_divergence", trainer.step)
    skipped = Skipped(trainer.model_dir, loop.batches.batch_size)
    entry = _entry(trainer, fault, skipped)
    story = _story(entry, fault)
    if not guard.rolls_back:
        raise Diverged(f"{story}. {_newest(trainer)}")
    if len(skipped.entries) >= guard.max_rollbacks:
        raise Diverged(
            f"{story}, and the run has rolled back {len(skipped.entries)} "
            f"times already (Guard.max_rollbacks). {_newest(trainer)}"
        )
    # What follows reads what is written here.
    trainer.plugin.any_process(False)
    if trainer.plugin.is_chief:
        skipped.add(entry)
    trainer.plugin.any_process(False)
    if not restore_newest(trainer, _directory(trainer), going_back=True):
        raise Diverged(f"{story}. {_newest(trainer)}")
    trainer.parts.watch.forget()
    check_alike(trainer)
    logging.warning("%s. Going on from step %d.", story, trainer.step)
    loop.callbacks.give_states()
    loop.callbacks.call("on_roll_back", trainer.step)


def _entry(
    trainer: "Trainer", fault: Fault, skipped: Skipped
) -> dict[str, Any]:
    """What the file says of a fault; strict JSON has no NaN."""
    where: dict[str, Any] = {"step": fault.step}
    if trainer.plugin.options.batches_by_step:
        where["batch"] = position_of(fault.step, skipped.positions)
        where["batch_size"] = skipped.batch_size
    else:
        where["until_step"] = trainer.step
    return {
        **where,
        "reason": fault.reason,
        "loss": _finite(fault.loss),
        "gradient_norm": _finite(fault.gradient_norm),
        "time": datetime.datetime.now(datetime.UTC).isoformat(
            timespec="seconds"
        ),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _story(entry: dict[str, Any], fault: Fault) -> str:
    where = f"after step {fault.step}"
    if "batch" in entry:
        where += f", on batch {entry['batch']} of the training data"
    return (
        f"Training diverged {where}: {fault.reason} (loss {fault.loss:g}, "
        f"gradient norm {fault.gradient_norm:g})"
    )


def _directory(trainer: "Trainer") -> str:
    return os.path.join(trainer.model_dir or "", "checkpoints")


def _newest(trainer: "Trainer") -> str:
    if trainer.model_dir is not None:
        found = storage.listing(_directory(trainer))
        if found:
            return f"The newest checkpoint is {found[-1]}"
    return "There is no checkpoint to go back to"
