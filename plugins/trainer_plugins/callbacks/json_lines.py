"""The callback JsonLines: writes logs to metrics.jsonl, one object per line."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from trainer import Callback, UserError
from trainer.plugin_api import (
    REFUSALS,
    atomic_files,
    configurable,
    schema,
    write_whole,
)

FILE_NAME = "metrics.jsonl"
EVALUATOR_FILE_NAME = "metrics_evaluator.jsonl"

_STATE = schema.record({"waiting": schema.list_of(schema.text)})
_KEYS = {"step": schema.integer(), "split": schema.text}
_LINE = schema.record({"step": schema.number()})
_VALUE = schema.optional(schema.number())


@configurable(module="trainer_plugins.callbacks")
class JsonLines(Callback):
    """Appends each log of the train and the eval split to `metrics.jsonl`.

    A line is `{"step": 100, "split": "train", "loss": 0.12, ...}`. It is
    strict JSON: a value that is not finite is written as `null`.

    A run that was killed after its last checkpoint repeats some steps. When
    training starts, the lines of these steps are dropped, and so is a torn
    last line. Lines of the step that it continues from are dropped if they
    were not due, but only written at the end of a shorter run. The file is
    opened for each line; on object stores such as gs://, this uploads the
    whole file each time. Lines that cannot be written, as on a full disk, are
    a warning: they are kept, in checkpoints as well, and written later.

    A side-car evaluator (`--mode=continuous_eval`) writes such lines to
    `metrics_evaluator.jsonl`. With one writer per file, lines are never
    interleaved, or lost when the other process rewrites the file. Each step
    has one line there, however often the evaluator was killed.
    """

    only_watches = True
    single = True

    def __init__(self) -> None:
        super().__init__()
        self._ends_whole = False
        self._there: set[int] = set()
        self._waiting: list[str] = []
        self._failed = False

    def setup(self) -> None:
        """Reads what a previous evaluator has written.

        Raises:
            UserError: the file is a link.
        """
        if self._path is None:
            return
        atomic_files.prepare_file(*os.path.split(self._path))
        if self.following:
            try:
                # The evaluator is the only writer of its file, so a torn line
                # is its own.
                self._there = _drop_torn_line(self._path)
            except REFUSALS as error:
                raise UserError(
                    f"{self._path} cannot be written: {error}"
                ) from None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Drops the lines of steps that will be repeated.

        Raises:
            UserError: the file cannot be written.
        """
        if self._path is None:
            return
        try:
            last = self.trainer.fired_step
            drop_after(self._path, last, self.trainer.taken_back)
        except REFUSALS as error:
            raise UserError(
                f"{self._path} cannot be written: {error}"
            ) from None
        self._write_waiting()

    def on_roll_back(self, step: int) -> None:
        """Drops the lines of steps that will be repeated."""
        last = self.trainer.fired_step
        # Lines that the disk refused are not in the file, but may be of steps
        # that will be repeated, too.
        self._waiting = [
            line for line in self._waiting if json.loads(line)["step"] <= last
        ]
        self.on_train_begin()

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Appends one line."""
        # An evaluator that was killed between a line and its record evaluates
        # the step again.
        if self._path is None or step in self._there:
            return
        self._waiting.append(as_line(step, split, logs))
        self._write_waiting()

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {"waiting": list(self._waiting)}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        _STATE(state, "JsonLines")
        # Parse and format each line, so that no arbitrary text of a
        # checkpoint gets into the file.
        self._waiting = [_reformatted(line) for line in state["waiting"]]
        # Some may be in the file: the earlier process may have written them
        # after the checkpoint.
        self._failed = bool(self._waiting)

    def close(self) -> None:
        """Writes the lines that could not be written before."""
        self._write_waiting()

    def _write_waiting(self) -> None:
        if self._path is None or not self._waiting:
            return
        try:
            # A failed append may have written a part of the lines.
            if self._failed:
                self._mend(self._path)
            # Known after a write: the end of the file is not read for each
            # line.
            start = "" if self._ends_whole else _line_break(self._path)
            tf.io.gfile.makedirs(os.path.dirname(self._path))
            atomic_files.append(self._path, start + "".join(self._waiting))
        except REFUSALS as error:
            self._failed, self._ends_whole = True, False
            logging.warning(
                "%s cannot be written; %d lines are kept for later. %s",
                self._path,
                len(self._waiting),
                error,
            )
        else:
            self._failed, self._ends_whole = False, True
            self._waiting = []

    def _mend(self, path: str) -> None:
        """Drops a torn line, and forgets waiting lines that were written."""
        drop_after(path, math.inf)
        if atomic_files.exists(path):
            # A line holds its step and split, so equal lines are the same log.
            there = set(
                atomic_files.read(path).decode().splitlines(keepends=True)
            )
            self._waiting = [w for w in self._waiting if w not in there]

    @property
    def _path(self) -> str | None:
        """The path of the file; `None` if this process does not write."""
        trainer = self.trainer
        if trainer.model_dir is None or not trainer.plugin.is_chief:
            return None
        name = EVALUATOR_FILE_NAME if self.following else FILE_NAME
        return os.path.join(trainer.model_dir, name)


def as_line(step: int, split: str, logs: dict[str, float]) -> str:
    """Returns one line of the file; NaN and infinities become `null`."""
    values = {
        name: float(value) if math.isfinite(value) else None
        for name, value in logs.items()
    }
    key = {"step": int(step), "split": split}
    # Twice: first so that they come first, last so that they win over metrics
    # of these names.
    return json.dumps(key | values | key, allow_nan=False) + "\n"


def _reformatted(line: str) -> str:
    """Returns a line of a checkpoint in the format of `as_line`.

    Raises:
        ValueError: it contains anything else.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise schema.Misfit("JsonLines.waiting is not JSON") from None
    schema.record(_KEYS)(found, "JsonLines.waiting")
    values = {name: v for name, v in found.items() if name not in _KEYS}
    schema.mapping_of(_VALUE)(values, "JsonLines.waiting")
    nothing = math.nan  # This is written as null.
    return as_line(
        found["step"],
        found["split"],
        {name: nothing if v is None else v for name, v in values.items()},
    )


def drop_after(path: str, step: float, taken_back: Sequence[str] = ()) -> None:
    """Atomically drops the lines of later steps and incomplete lines.

    Args:
        path: a file of JSON lines; it need not exist.
        step: lines with a greater `step` are dropped; may be infinity.
        taken_back: splits whose lines of this step are dropped, too.
    """
    if not atomic_files.exists(path):
        return
    before = atomic_files.read(path)
    lines = before.splitlines(keepends=True)
    keys = [_key_of(line) for line in lines]
    # A killed process may leave a torn last line.
    is_torn = not before.endswith(b"\n")
    # A torn last line is expected and worthless. Anything else was not written
    # by a run, and somebody may want it.
    if None in (keys[:-1] if is_torn else keys):
        atomic_files.keep_copy(path, before, "some lines are not logs of a run")
    after = b"".join(
        line
        for line, key in zip(lines, keys, strict=True)
        if key is not None
        and key[0] <= step
        and not (key[0] == step and key[1] in taken_back)
    )
    if after != before:
        write_whole(path, after)


def _drop_torn_line(path: str) -> set[int]:
    """Drops a torn last line; returns the steps of the other lines."""
    drop_after(path, math.inf)
    if not atomic_files.exists(path):
        return set()
    return {
        json.loads(line)["step"]
        for line in atomic_files.read(path).splitlines()
    }


def _key_of(line: bytes) -> tuple[float, Any] | None:
    """Returns step and split of a complete line; `None` for other text."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
        _LINE(found, "it")
    except (ValueError, RecursionError):
        return None
    return found["step"], found.get("split")


def _line_break(path: str) -> str:
    """Returns a line break if the last line is torn.

    Only training may drop a torn line. Otherwise the file may be in use by a
    training process that is still alive.
    """
    if not atomic_files.exists(path):
        return ""
    size = tf.io.gfile.stat(path).length
    if not size:
        return ""
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(size - 1)
        return "" if file.read(1) == b"\n" else "\n"
