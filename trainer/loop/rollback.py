"""Rolls a run back when its guard has found a bad step, or ends it."""

import datetime
import json
import math
import os
from typing import Any

from absl import logging

from trainer.checkpoint import storage
from trainer.data.batches import Batches, position_of
from trainer.errors import Diverged, UserError
from trainer.loop.callback_list import CallbackList
from trainer.loop.run import Run
from trainer.runtime import schema
from trainer.runtime.files import exists, read_json, set_aside, write_whole
from trainer.step.divergence_guard import Fault, Guard

FILE_NAME = "skipped_batches.json"
_ENTRY = schema.record(
    {},
    {
        "batch": schema.Count,
        "batch_size": schema.Positive | None,
    },
)
_CONTENT = schema.record(
    {"skipped": list[_ENTRY.kind]}  # type: ignore[name-defined]
)


class Skipped:
    """The batches that a run steps over, from `skipped_batches.json`.

    Every process reads the file at each start and after each rollback. An
    entry without a `"batch"` comes from a strategy under which it is not known
    which batch a step took. An entry of another batch size counts as a
    rollback, but nothing is skipped for it: its number means other examples
    now. A damaged file counts as none.

    Args:
        model_dir: where the run lives; `None` skips nothing.
        batch_size: the present global one; `None` if unknown.

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
        """How many entries are for batches of another size."""
        known = sum("batch" in entry for entry in self.entries)
        return known - len(self.positions)

    def add(self, entry: dict[str, Any]) -> None:
        """Writes the file with one more entry; for the chief alone."""
        self.mend()
        content = {"skipped": [*self.entries, entry]}
        write_whole(self._path, json.dumps(content, indent=1) + "\n")


def without_skipped(
    batches: Batches, model_dir: str | None, *, by_step: bool
) -> Batches:
    """The training batches that are left, as the run directory says.

    Args:
        batches: all of them.
        model_dir: where the run lives.
        by_step: whether it is known which batch a step takes.

    Returns:
        The same batches if there is nothing to skip.
    """
    skipped = Skipped(model_dir, batches.batch_size)
    positions = skipped.positions
    if others := skipped.of_another_size:
        logging.warning(
            "%d of the batches in %s are not stepped over: they were found "
            "with another batch_size than %s.",
            others,
            FILE_NAME,
            batches.batch_size,
        )
    if not positions or not by_step:
        return batches
    return batches.without(positions)


class Rollback:
    """Ends a run or goes back when the guard has found a bad step.

    Args:
        guard: says what counts as bad, and what then happens.
        run: whose run it is.
        callbacks: of the run.
        batches: the training data.

    Raises:
        UserError: the guard rolls back, and there are no checkpoints, or the
            data cannot leave out a batch.
    """

    def __init__(
        self,
        guard: Guard,
        run: Run,
        callbacks: CallbackList,
        batches: Batches,
    ) -> None:
        self._guard = guard
        self._run = run
        self._callbacks = callbacks
        self._batch_size = batches.batch_size
        if not guard.rolls_back:
            return
        if run.model_dir is None or not callbacks.save:
            raise UserError(
                "Guard.action = 'roll_back' needs checkpoints to go back to: "
                "add @Checkpoint() to run.callbacks, and set --model_dir; or "
                "choose 'stop'."
            )
        if run.plugin.options.batches_by_step:
            batches.without(())  # Refused now if it cannot be done later.

    @property
    def needs_a_checkpoint(self) -> bool:
        """Whether the initial state must be saved, so as to go back to it.

        All processes of a run read this at the same time.
        """
        if not self._guard.rolls_back:
            return False
        nothing = not self._run.step or not storage.listing(self._directory)
        return self._run.plugin.any_process(nothing)

    def go_back(self, fault: Fault) -> None:
        """Restores the newest checkpoint, to go on without the batch at fault.

        All processes of a run call this at the same step.

        Raises:
            Diverged: the guard says stop, the run has gone back too often, or
                there is nothing to go back to.
        """
        run, guard = self._run, self._guard
        assert run.parts.guard is not None
        # First, saves that are under way are finished, in all processes: the
        # newest checkpoint must be the same for all.
        self._callbacks.call("on_divergence", run.step)
        skipped = Skipped(run.model_dir, self._batch_size)
        entry = self._entry(fault, skipped)
        # Written before anything is restored: it tells the step of the fault.
        story = _story(entry, fault)
        if not guard.rolls_back:
            raise Diverged(f"{story}. {self._newest()}")
        # By the file, so that rollbacks of earlier attempts count.
        if len(skipped.entries) >= guard.max_rollbacks:
            raise Diverged(
                f"{story}, and the run has rolled back {len(skipped.entries)} "
                f"times already (Guard.max_rollbacks). {self._newest()}"
            )
        # A barrier before the chief writes: no process still reads the old file
        # above. And one after it: all processes read the new file below.
        run.plugin.any_process(False)
        if run.plugin.is_chief:
            skipped.add(entry)
        run.plugin.any_process(False)
        if not run.state.restore_newest(self._directory, going_back=True):
            raise Diverged(f"{story}. {self._newest()}")
        run.parts.guard.forget()
        run.state.check_alike()
        logging.warning("%s. Going on from step %d.", story, run.step)
        # No `on_train_begin` follows, after which Keras' callbacks get theirs.
        self._callbacks.give_states()
        self._callbacks.call("on_roll_back", run.step)

    def judge(self, fault: Fault, *, earlier: int) -> str:
        """Says what a run would do after a fault, without doing it.

        Args:
            fault: what the guard has found.
            earlier: how many faults this process has been told of before.

        Raises:
            Diverged: the run would end.
        """
        run, guard = self._run, self._guard
        assert run.parts.guard is not None
        skipped = Skipped(run.model_dir, self._batch_size)
        story = _story(self._entry(fault, skipped), fault)
        if not guard.rolls_back:
            raise Diverged(story + ".")
        if len(skipped.entries) + earlier >= guard.max_rollbacks:
            raise Diverged(f"{story}, more often than Guard.max_rollbacks.")
        run.parts.guard.forget()
        return story + ". A run would roll back."

    def _entry(self, fault: Fault, skipped: Skipped) -> dict[str, Any]:
        """The entry for a fault; strict JSON has no NaN."""
        where: dict[str, Any] = {"step": fault.step}
        # Steps are numbered without the skipped batches, positions with them.
        if self._run.plugin.options.batches_by_step:
            where["batch"] = position_of(fault.step, skipped.positions)
            where["batch_size"] = skipped.batch_size
        else:
            where["until_step"] = self._run.step
        now = datetime.datetime.now(datetime.UTC)
        return {
            **where,
            "reason": fault.reason,
            "loss": _finite(fault.loss),
            "gradient_norm": _finite(fault.gradient_norm),
            "time": now.isoformat(timespec="seconds"),
        }

    @property
    def _directory(self) -> str:
        return os.path.join(self._run.model_dir or "", "checkpoints")

    def _newest(self) -> str:
        if self._run.model_dir is not None:
            found = storage.listing(self._directory)
            if found:
                return f"The newest checkpoint is {found[-1]}"
        return "There is no checkpoint to go back to"


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
