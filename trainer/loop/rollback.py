"""Rolls a run back when its guard has found a bad step, or ends it."""

import datetime
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from trainer.checkpoint import storage
from trainer.data.batches import Batches, position_of
from trainer.errors import Diverged, UserError
from trainer.loop.callback_list import CallbackList
from trainer.loop.run import Run
from trainer.runtime import schema
from trainer.runtime.files import read_record, write_json
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


def read_skipped(
    model_dir: str | None, *, sets_aside: bool = False
) -> list[dict[str, Any]]:
    """The batches that a run steps over, as `skipped_batches.json` lists them.

    Every process reads the file at each start and after each rollback. An
    entry without a `"batch"` comes from a strategy under which it is not known
    which batch a step took. A damaged file counts as none.

    Args:
        model_dir: where the run lives; `None` skips nothing.
        sets_aside: whether a damaged file is set aside; in the chief alone.
    """
    if model_dir is None:
        return []
    why = "; batches that it listed are no longer skipped"
    content = read_record(
        os.path.join(model_dir, FILE_NAME),
        _CONTENT,
        aside=why if sets_aside else None,
    )
    return list(content.get("skipped", ()))


def _positions(
    entries: Sequence[Mapping[str, Any]], batch_size: int | None
) -> list[int]:
    """The numbers of batches of this size.

    An entry of another one counts as a rollback, but nothing is skipped for
    it: its number means other examples now.
    """
    return [
        entry["batch"]
        for entry in entries
        if "batch" in entry and entry.get("batch_size") == batch_size
    ]


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
    entries = read_skipped(model_dir)
    positions = _positions(entries, batches.batch_size)
    known = sum("batch" in entry for entry in entries)
    if others := known - len(positions):
        logging.warning(
            "%d of the batches in %s are not skipped: they were found with a "
            "batch_size other than %s.",
            others,
            FILE_NAME,
            batches.batch_size,
        )
    return batches.without(positions) if positions and by_step else batches


class Rollback:
    """Ends a run or goes back when the guard has found a bad step.

    Args:
        guard: defines bad steps, and what happens then.
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
        if run.model_dir is None or not callbacks.savers:
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
        """Restores the newest checkpoint; the batch at fault is left out.

        All processes of a run call this at the same step.

        Raises:
            Diverged: the guard says stop, the run has gone back too often, or
                there is nothing to go back to.
        """
        run = self._run
        # First, saves that are under way are finished, in all processes: the
        # newest checkpoint must be the same for all.
        self._callbacks.call("on_divergence", run.step)
        # Told before anything is restored: it has the step of the fault.
        story, entry, entries = self.judge(fault)
        # A barrier before the chief writes: no process still reads the old file
        # above. And one after it: all processes read the new file below.
        run.plugin.any_process(False)
        if run.plugin.is_chief:
            path = os.path.join(run.model_dir or "", FILE_NAME)
            write_json(path, {"skipped": [*entries, entry]})
        run.plugin.any_process(False)
        if not run.state.restore_newest(self._directory, going_back=True):
            raise Diverged(f"{story}. {self._newest()}")
        run.state.check_alike()
        logging.warning("%s. Continuing from step %d.", story, run.step)
        # No `on_train_begin` follows, after which Keras' callbacks get theirs.
        self._callbacks.give_states()
        self._callbacks.call("on_roll_back", run.step)

    def judge(
        self, fault: Fault, *, earlier: int = 0
    ) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """Returns a fault's description, its entry and all entries.

        Args:
            fault: what the guard has found.
            earlier: how many faults this process has been told of before, if
                it does not roll back.

        Raises:
            Diverged: the guard says stop, or the run has gone back too often.
        """
        assert self._run.parts.guard is not None
        self._run.parts.guard.forget()
        entries = read_skipped(self._run.model_dir)
        entry: dict[str, Any] = {"step": fault.step}
        where = f"after step {fault.step}"
        # Steps are numbered without the skipped batches, positions with them.
        if self._run.plugin.options.batches_by_step:
            skipped = _positions(entries, self._batch_size)
            entry["batch"] = position_of(fault.step, skipped)
            entry["batch_size"] = self._batch_size
            where += f", on batch {entry['batch']} of the training data"
        else:
            entry["until_step"] = self._run.step
        now = datetime.datetime.now(datetime.UTC)
        entry |= {
            "reason": fault.reason,
            "loss": _finite(fault.loss),
            "gradient_norm": _finite(fault.gradient_norm),
            "time": now.isoformat(timespec="seconds"),
        }
        story = (
            f"Training diverged {where}: {fault.reason} (loss {fault.loss:g}, "
            f"gradient norm {fault.gradient_norm:g})"
        )
        if not self._guard.rolls_back:
            raise Diverged(f"{story}. {self._newest()}")
        # By the file, so that rollbacks of earlier attempts count.
        times = len(entries) + earlier
        if times >= self._guard.max_rollbacks:
            raise Diverged(
                f"{story}, and the run has rolled back {times} times already "
                f"(Guard.max_rollbacks). {self._newest()}"
            )
        return story, entry, entries

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
    # Strict JSON has no NaN.
    return value if math.isfinite(value) else None
