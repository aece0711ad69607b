"""Keeps the best checkpoint that an evaluator has seen.

    best/step_00000100/    one checkpoint, in the same form as in checkpoints/
    best/best.json         its value, and the progress of the evaluator

The record is written last, so that an evaluator that is killed at any moment
can continue from it.
"""

import json
import math
import os
from typing import Any

from absl import logging

from trainer.checkpoint import storage
from trainer.errors import UserError, nearest
from trainer.loop.monitor import Monitor
from trainer.runtime import schema
from trainer.runtime.files import (
    exists,
    make_directory,
    read_json,
    set_aside,
    write_whole,
)

_RECORD = "best.json"
_CHECK = schema.record(
    {
        "evaluated_step": schema.integer(-1),
        "monitor": schema.text,
        "mode": schema.one_of("min", "max"),
        "step": schema.optional(schema.integer()),
        "value": schema.optional(schema.number()),
    }
)


class Best:
    """The best checkpoint of a run, by an evaluated value.

    Args:
        directory: where it is kept; created with the first checkpoint.
        monitor: the value to compare, as `val_*`, and its direction.

    Attributes:
        directory: as given.
        last_step: the newest step that was evaluated; -1 if none was.
        step: the best step; `None` if no value was finite yet.
        value: the value of the best step.
    """

    def __init__(self, directory: str, monitor: Monitor) -> None:
        self.directory = directory
        self._monitor = monitor
        self.last_step = -1
        self.step: int | None = None
        self.value: float | None = None
        # An evaluator may have been killed while it saved.
        storage.remove_leftovers(directory)
        self._restore(self._read())

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
        name = self._monitor.name
        if name not in values:
            raise UserError(
                f"run.best_monitor = {name!r} is not measured. "
                f"{nearest(name, values)}"
            )
        value = float(values[name])
        # Also of a step that is not the best: it has been evaluated.
        self.last_step = snapshot.step
        # NaN is never the best value, and JSON has no infinity.
        if not math.isfinite(value) or (
            self.value is not None
            and not self._monitor.better(value, self.value)
        ):
            return
        # Beside the recorded one, which `commit` deletes only after recording
        # this one.
        storage.save(self.directory, snapshot)
        self.step, self.value = snapshot.step, value

    def commit(self) -> None:
        """Records the best checkpoint, and deletes the previous one."""
        # There may be no checkpoint yet, as when the first value is NaN.
        make_directory(self.directory)
        record = {
            "evaluated_step": self.last_step,
            "monitor": self._monitor.name,
            "mode": self._monitor.mode,
            "step": self.step,
            "value": self.value,
        }
        write_whole(
            os.path.join(self.directory, _RECORD),
            json.dumps(record, allow_nan=False) + "\n",
        )
        # After the record: if the evaluator is killed here, a checkpoint too
        # many stays until the next `commit`, but never one too few.
        for path in storage.listing(self.directory):
            if self.step not in (None, storage.step_of(path)):
                storage.remove(path)

    def describe(self) -> dict[str, float]:
        """Returns `best_step` and the best value; empty if there is none."""
        if self.step is None or self.value is None:
            return {}
        return {
            "best_step": self.step,
            f"best_{self._monitor.name}": self.value,
        }

    def _restore(self, record: dict[str, Any]) -> None:
        """Continues from the record of an earlier process."""
        self.last_step = record.get("evaluated_step", -1)
        if record.get("step") is None:
            return
        found = record["monitor"], record["mode"]
        wanted = self._monitor.name, self._monitor.mode
        # The progress still counts, but values of two kinds cannot be compared.
        if found != wanted:
            logging.warning(
                "%s holds the best checkpoint by %s (%s). The best by %s (%s) "
                "is searched for among newer checkpoints only.",
                self.directory,
                *found,
                *wanted,
            )
            return
        self.step, self.value = record["step"], record["value"]

    def _read(self) -> dict[str, Any]:
        path = os.path.join(self.directory, _RECORD)
        if not exists(path):
            return {}
        try:
            found: dict[str, Any] = read_json(path)
            _CHECK(found, "it")
        # Only damage: an error of a remote store goes up, because starting over
        # would lose the record.
        except ValueError as error:
            set_aside(path, f"{error}; the evaluator starts over")
            return {}
        return found
