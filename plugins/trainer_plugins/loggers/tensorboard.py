"""The logger TensorBoard: event files for each split, and hyperparameters."""

import contextlib
import functools
import io
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf
from absl import logging
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.graph.keras_util import keras_model_to_graph_def
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
    PeriodLike,
    Ticker,
    configurable,
    files,
    histogram,
    run_paths,
    schema,
    write_whole,
)
from trainer_plugins.loggers import tags
from trainer_plugins.loggers.hyperparameters import hyperparameters

# The description of 1,000 layers takes up to half a second.
_MOST_LAYERS = 1000
_STATE = schema.record({"final": list[schema.Word]})


class _Message(Media):
    """A serialized summary, in the place of a value."""


class _Graph(Media):
    """A serialized graph, in the place of a value."""


@configurable(module="trainer_plugins.callbacks")
class TensorBoard(Logger):
    """Writes `train/` and `eval/` in the run directory, for TensorBoard.

    The train run holds the training scalars, the learning rate, speeds, the
    operative configuration as text and the layers of the model as a graph; the
    eval run holds the evaluation scalars, and another evaluation set has a run
    of its own, such as `eval_rare/`. Each holds what `trainer.log` was given,
    of every kind. A run that began with these in `tensorboard/` goes on there.

    Hyperparameters are written next to the metrics that they lead to: in the
    eval run, or in the train run if nothing is evaluated. TensorBoard's HPARAMS
    tab then has one row for each run under `--logdir`, named by the run
    directory. Its columns are the learning rate, the batch size and the number
    of steps that the run has, and what else was set that bears on the result.

    A side-car evaluator (`--mode=continuous_eval`) writes `evaluator/`,
    because TensorBoard shows only the later one of two processes that write to
    the same directory.

    Data that cannot be written, as on a full disk, is a warning: it is kept
    and written later.

    Args:
        write_graph: whether to write the layers of a functional or sequential
            model of at most 1,000 layers, for TensorBoard's GRAPHS tab. What
            another model consists of is only known once it is run.
        histogram_every: the period of histograms of all trainable weights,
            such as `"1 epoch"`; `None` writes none.
    """

    takes = frozenset({"scalar", "image", "histogram", "text", "audio"})

    def __init__(
        self,
        *,
        write_graph: bool = True,
        histogram_every: PeriodLike | None = None,
    ) -> None:
        super().__init__()
        self._write_graph = write_graph
        self._histogram_every = histogram_every
        self._ticker: Ticker | None = None
        # The names of learning rates; to compute the rates takes a while.
        self._rates: dict[str, float] = {}
        # Below the run directory: where earlier versions had the files.
        self._folder = ""
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        # The tags of splits whose description is in the file already.
        self._described: set[tuple[str, str]] = set()
        # Of splits whose writer has not yet written: what was there before.
        self._before: dict[str, set[str]] = {}
        # The splits whose newest step only the end of a run has logged.
        self._final: set[str] = set()

    def setup(self) -> None:
        """Refuses to write through a link.

        Raises:
            UserError: one of the directories is a link, or the period of
                histograms is none.
        """
        if self._histogram_every is not None and not self.following:
            name = "TensorBoard.histogram_every"
            period = self.run.period(self._histogram_every, name)
            self._ticker = Ticker(period, self.run.plugin.any_process)
            self._ticker.start(self.run.fired_step)
        if self.writes:
            assert self.run.model_dir is not None
            earlier = os.path.join(self.run.model_dir, "tensorboard")
            self._folder = "tensorboard/" * files.is_directory(earlier)
            for split in self._splits:
                run_paths.prepare_directory(
                    self.run.model_dir, self._name(split)
                )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hides steps that will be repeated, and writes the configuration."""
        super().on_train_begin(logs)
        if not self.writes:
            return
        self._rates = self.run.built.learning_rates()
        text = gin.markdown(gin.operative_config_str())
        values: dict[str, Media] = {"operative_config": Media("text", text)}
        if self._write_graph and not self.run.fired_step:
            values |= _graph_of(self.run.model)
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
        if split == "train":
            logs = tags.of_training(logs, self.run, rates=self._rates)
        super().on_log(step, split, logs)

    def next_due(self, step: int) -> int | None:
        """See `Callback.next_due`."""
        return None if self._ticker is None else self._ticker.next_step(step)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Writes histograms of the weights when they are due."""
        step = self.run.step
        # All processes ask; only the one that writes reads the weights.
        if not (self._ticker and self._ticker.due(step) and self.writes):
            return
        values = {
            f"weights/{one.path}": Media(
                "histogram", histogram(keras.ops.convert_to_numpy(one))
            )
            for one in self.run.model.trainable_variables
        }
        self.on_values(step, "train", values)

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
                        _write_values(one.values, self._describe(one))
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
        elif split not in ("train", "eval") and not self._folder:
            # It may have the name of another directory of the run.
            split = f"eval_{split}"
        return f"{self._folder}{split}"

    def _directory(self, split: str) -> str:
        assert self.run.model_dir is not None
        return os.path.join(self.run.model_dir, self._name(split))

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            # Closing flushes, which fails again on a full disk; the data is
            # kept.
            with contextlib.suppress(OSError), files.os_errors():
                writer.close()
        self._writers, self._described = {}, set()

    def _describe(self, entry: Entry) -> dict[str, str]:
        """What each tag is, once in a file: TensorBoard reads the first."""
        split, found = entry.split, {}
        for name in entry.values:
            is_known = (split, name) in self._described
            found[name] = "" if is_known else tags.description(name, split)
            self._described.add((split, name))
        return found

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


def _write_values(
    values: Mapping[str, Any], descriptions: Mapping[str, str]
) -> None:
    """Writes values at the step of the default writer."""
    # `tf.summary.scalar` takes an operation for each, which costs a fast step's
    # log more than all else. The bytes of messages, one after the other, are
    # those of a message with the values of all.
    messages = []
    scalars = Summary()
    for name, value in values.items():
        about = descriptions[name]
        if isinstance(value, _Message):
            messages.append(value.data)
        elif isinstance(value, _Graph):
            tf.summary.graph(tf.compat.v1.GraphDef.FromString(value.data))
        elif not isinstance(value, Media):
            one = scalars.value.add(tag=name, metadata=_metadata(about))
            one.tensor.dtype = tf.float32.as_datatype_enum
            one.tensor.tensor_shape.SetInParent()
            one.tensor.float_val.append(value)
        elif value.kind == "histogram":
            messages.append(_histogram(name, value.data, about))
        elif value.kind == "image":
            most = len(value.data)
            tf.summary.image(
                name, value.data, max_outputs=most, description=about
            )
        elif value.kind == "audio":
            sound = value.data[np.newaxis]
            tf.summary.audio(name, sound, value.sample_rate, description=about)
        else:
            tf.summary.text(name, value.data, description=about)
    messages.append(scalars.SerializeToString())
    tf.summary.experimental.write_raw_pb(b"".join(messages))


@functools.cache
def _metadata(description: str) -> SummaryMetadata:
    """As TensorBoard's own scalars have it."""
    return create_summary_metadata(display_name=None, description=description)


def _graph_of(model: keras.Model) -> dict[str, Media]:
    """The layers of a model, as TensorBoard's GRAPHS tab shows them."""
    graph = None
    # Whatever a `get_config` of the user's raises, or TensorBoard for it.
    with contextlib.suppress(Exception):
        if _layers_in(model) <= _MOST_LAYERS:
            # What layers compute in: it warns of the name of a policy.
            text = re.sub(r'"mixed_(\w+)"', r'"\1"', model.to_json())
            graph = keras_model_to_graph_def(json.loads(text))
    if graph is None or not graph.node or graph.node[0].name == model.name:
        logging.info(
            "TensorBoard shows no graph of the model: it has more than %d "
            "layers, or does not say what it consists of.",
            _MOST_LAYERS,
        )
        return {}
    scope = f"{model.name}/"
    for node in graph.node:
        # Without it, the tab's first view calls the graph malformed.
        node.op = node.attr["keras_class"].s.decode()
        # That view shows what is in no scope.
        node.name = node.name.removeprefix(scope)
        node.input[:] = [name.removeprefix(scope) for name in node.input]
    return {"": _Graph("text", graph.SerializeToString())}


def _layers_in(layer: keras.Layer) -> int:
    parts = layer.layers if isinstance(layer, keras.Model) else ()
    return 1 + sum(map(_layers_in, parts))


def _histogram(name: str, buckets: np.ndarray, description: str) -> bytes:
    """The summary of a histogram that has its buckets already."""
    summary = histogram_pb(name, [], description=description)
    tensor = tf.make_tensor_proto(buckets, dtype=tf.float64)
    summary.value[0].tensor.ParseFromString(tensor.SerializeToString())
    return bytes(summary.SerializeToString())


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
