"""The logger TensorBoard: event files for each split, and hyperparameters."""

import contextlib
import io
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.summary import session_end_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from trainer import Logger
from trainer.plugin_api import (
    Entry,
    Media,
    configurable,
    files,
    run_paths,
    schema,
    write_whole,
)
from trainer_plugins.loggers.hyperparameters import hyperparameters

# As TensorBoard's own scalars have it.
_SCALAR = create_summary_metadata(display_name=None, description="")
_STATE = schema.record({"final": list[schema.Word]})


class _Message(Media):
    """A serialized summary, in the place of a value."""


@configurable(module="trainer_plugins.callbacks")
class TensorBoard(Logger):
    """Writes `tensorboard/train` and `tensorboard/eval` in the run directory.

    The train run holds the training scalars, the learning rate and the
    operative configuration as text; the eval run holds the evaluation
    scalars, and any other evaluation set has a run of its name. Each holds what
    `trainer.log` was given, of every kind.

    Hyperparameters are written next to the metrics that they lead to: in the
    eval run, or in the train run if nothing is evaluated. TensorBoard's HPARAMS
    tab then has one row for each run under `--logdir`, named by the run
    directory. Its columns are what was set, in gin or by flags, and the batch
    size and learning rate; no defaults.

    A side-car evaluator (`--mode=continuous_eval`) writes
    `tensorboard/evaluator`, because TensorBoard shows only the later one of
    two processes that write to the same directory.

    Data that cannot be written, as on a full disk, is a warning: it is kept
    and written later.
    """

    takes = frozenset({"scalar", "image", "histogram", "text", "audio"})

    def __init__(self) -> None:
        super().__init__()
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        # Of splits whose writer has not yet written: what was there before.
        self._before: dict[str, set[str]] = {}
        # The splits whose newest step only the end of a run has logged.
        self._final: set[str] = set()

    def setup(self) -> None:
        """Refuses to write through a link.

        Raises:
            UserError: one of the directories is a link.
        """
        if self.writes:
            assert self.run.model_dir is not None
            for split in self._splits:
                run_paths.prepare_directory(
                    self.run.model_dir, self._name(split)
                )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hides steps that will be repeated, and writes the configuration."""
        super().on_train_begin(logs)
        if not self.writes:
            return
        text = gin.markdown(gin.operative_config_str())
        values = {"operative_config": Media("text", text)}
        self.on_values(self.run.fired_step, "train", values)
        assert self.run.model_dir is not None
        folder, name = os.path.split(self.run.model_dir.rstrip("/"))
        start = hparams_pb(
            hyperparameters(self.run),
            # Rows of equal names are one row: by default that is a hash of the
            # values, which two runs may have in common. The directory's own
            # name comes first, as TensorBoard cuts long ones.
            trial_id=f"{name} ({folder})" if folder else name,
            start_time_secs=time.time(),
        )
        self._write_session(start)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Writes a split's scalars."""
        scalars = dict(logs)
        if split == "train":
            for name, value in self.run.accounts.summary().items():
                scalars[f"time/{name}"] = value
        super().on_log(step, split, scalars)

    def on_final_log(
        self, step: int, split: str, logs: dict[str, float]
    ) -> None:
        """Writes a split's scalars; events have no mark, so it is kept here."""
        self._final.add(split)
        self.on_log(step, split, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Marks the run as done in the HPARAMS tab."""
        self._write_session(session_end_pb(STATUS_SUCCESS))

    def close(self) -> None:
        """Closes the event files."""
        super().close()
        self._close_writers()
        self._waiting = []

    def write(self, entries: Sequence[Entry]) -> None:
        """See `Logger.write`."""
        try:
            with files.os_errors():
                for one in entries:
                    # Which flushes at its end: only that shows whether the
                    # disk has taken the data.
                    # TensorFlow would keep each Python number that it gets.
                    step = np.asarray(one.step)
                    with self._writer(one.split).as_default(step=step):
                        _write_values(one.values)
                    self._before.pop(one.split, None)
                    self.run.written.add(self._directory(one.split))
        except OSError:
            # TensorBoard does not read past a torn record, so start new files.
            self._close_writers()
            for split, before in self._before.items():
                folder = self._directory(split)
                for name in {*files.listing(folder)} - before:
                    files.remove_if_possible(os.path.join(folder, name))
            self._before = {}
            raise

    def take_back(self, step: int, *, final: bool) -> None:
        """See `Logger.take_back`."""
        if self._writers:
            self._close_writers()
            # The names of event files contain whole seconds, and TensorBoard
            # reads them in order: the next file needs a later second.
            time.sleep(1.0 - time.time() % 1.0)
        for split in self._splits:
            # A new run has nothing to hide, and gets no stray event file.
            if files.is_directory(self._directory(split)):
                hides = final and split in self._final
                _hide_after(self._directory(split), step - hides)
        if final:
            self._final = set()

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {**super().state(), "final": sorted(self._final)}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        _STATE(state, "TensorBoard")
        super().load_state(state)
        self._final = set(state["final"])

    @property
    def _splits(self) -> Iterable[str]:
        return dict.fromkeys(["train", "eval", *self.run.sets])

    def _name(self, split: str) -> str:
        if self.following:
            split = "evaluator" if split == "eval" else f"evaluator_{split}"
        return f"tensorboard/{split}"

    def _directory(self, split: str) -> str:
        assert self.run.model_dir is not None
        return os.path.join(self.run.model_dir, self._name(split))

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            # Closing flushes, which fails again on a full disk; the data is
            # kept.
            with contextlib.suppress(OSError), files.os_errors():
                writer.close()
        self._writers = {}

    def _writer(self, split: str) -> tf.summary.SummaryWriter:
        if split not in self._writers:
            assert self.run.model_dir is not None
            run_paths.refuse_links(self.run.model_dir, self._name(split))
            self._before[split] = {*files.listing(self._directory(split))}
            self._writers[split] = tf.summary.create_file_writer(
                self._directory(split)
            )
        return self._writers[split]

    def _write_session(self, summary: Any) -> None:
        """Writes to the HPARAMS tab, beside the metrics of the evaluation."""
        if self.writes:
            split = "eval" if "eval" in self.run.sets else "train"
            message = _Message("text", summary.SerializeToString())
            # At step 0, which `_hide_after` never discards.
            self._waiting.append(Entry(0, split, {"": message}))
            self.flush()


def _write_values(values: Mapping[str, Any]) -> None:
    """Writes values at the step of the default writer."""
    # `tf.summary.scalar` takes an operation for each, which costs a fast step's
    # log more than all else. The bytes of messages, one after the other, are
    # those of a message with the values of all.
    messages = []
    scalars = Summary()
    for name, value in values.items():
        if isinstance(value, _Message):
            messages.append(value.data)
        elif not isinstance(value, Media):
            one = scalars.value.add(tag=name, metadata=_SCALAR)
            one.tensor.dtype = tf.float32.as_datatype_enum
            one.tensor.tensor_shape.SetInParent()
            one.tensor.float_val.append(value)
        elif value.kind == "histogram":
            messages.append(_histogram(name, value.data))
        elif value.kind == "image":
            tf.summary.image(name, value.data, max_outputs=len(value.data))
        elif value.kind == "audio":
            sound = value.data[np.newaxis]
            tf.summary.audio(name, sound, value.sample_rate)
        else:
            tf.summary.text(name, value.data)
    messages.append(scalars.SerializeToString())
    tf.summary.experimental.write_raw_pb(b"".join(messages))


def _histogram(name: str, buckets: np.ndarray) -> bytes:
    """The summary of a histogram that has its buckets already."""
    summary = histogram_pb(name, [])
    tensor = tf.make_tensor_proto(buckets, dtype=tf.float64)
    summary.value[0].tensor.ParseFromString(tensor.SerializeToString())
    content: bytes = summary.SerializeToString()
    return content


def _hide_after(directory: str, step: int) -> None:
    """Makes TensorBoard forget the later steps of an earlier process.

    Event files are read in the order of their names: this one comes after
    those of the killed process, and before the new one.
    """
    seconds = int(time.time())
    path = os.path.join(directory, f"events.out.tfevents.{seconds}.-restart")
    version = tf.compat.v1.Event(
        wall_time=seconds, file_version="brain.Event:2"
    )
    start = tf.compat.v1.Event(
        wall_time=seconds,
        step=step + 1,
        session_log=tf.compat.v1.SessionLog(
            status=tf.compat.v1.SessionLog.START
        ),
    )
    # TensorBoard takes the first start event for that of a new run, and
    # discards steps only at the second one.
    records = io.BytesIO()
    for event in (version, start, start):
        RecordWriter(records).write(event.SerializeToString())
    # It may be reading the directory, and must find the file whole.
    write_whole(path, records.getvalue())
