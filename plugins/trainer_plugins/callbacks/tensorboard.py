"""The callback TensorBoard: scalars, configuration and hyperparameters."""

import contextlib
import functools
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import gin
import tensorflow as tf
from absl import logging
from gin import config_parser

from trainer import Callback, UserError
from trainer.plugin_api import REFUSALS, atomic_files, configurable, write_whole

Scalar = bool | int | float | str


@configurable(module="trainer_plugins.callbacks")
class TensorBoard(Callback):
    """Writes `tensorboard/train` and `tensorboard/eval` in the run directory.

    The train run holds the training scalars, the learning rate and the
    operative configuration as text; the eval run holds the evaluation
    scalars, and any other evaluation set has a run of its name.
    Hyperparameters are written next to the metrics that they lead to: in the
    eval run, or in the train run if nothing is evaluated. TensorBoard's
    HPARAMS tab then has one row for each run under `--logdir`.

    A side-car evaluator (`--mode=continuous_eval`) writes
    `tensorboard/evaluator`, because TensorBoard shows only the later one of
    two processes that write to the same directory.

    Data that cannot be written, as on a full disk, is a warning: it is kept
    and written later.

    Raises:
        UserError: the `tensorboard` package is not installed.
    """

    only_watches = True
    single = True

    def __init__(self) -> None:
        super().__init__()
        _plugin("hparams")
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._hyperparameters: dict[str, Scalar] = {}
        self._started = time.time()
        self._session: str | None = None
        self._logged: set[str] = set()
        # Split, step, and a function that writes.
        self._waiting: list[tuple[str, int, Callable[[], None]]] = []

    def setup(self) -> None:
        """Refuses to write through a link.

        Raises:
            UserError: one of the directories is a link.
        """
        if self._writes:
            assert self.trainer.model_dir is not None
            for split in self._splits:
                atomic_files.prepare_directory(
                    self.trainer.model_dir, self._name(split)
                )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the configuration, and hides steps that will be repeated."""
        if not self._writes:
            return
        self._started = time.time()
        step = self.trainer.fired_step
        self._hide_after(step)
        config = gin.operative_config_str()
        self._hyperparameters = {
            **literal_bindings(config),
            **self.trainer.learning_rates(),
            "batch_size": self.trainer.batch_size,
        }
        self._write(
            "train",
            step,
            lambda: tf.summary.text("operative_config", gin.markdown(config)),
        )

    def on_roll_back(self, step: int) -> None:
        """Hides steps that will be repeated."""
        if not self._writes:
            return
        last = self.trainer.fired_step
        self._waiting = [one for one in self._waiting if one[1] <= last]
        self._close_writers()
        # The names of event files contain whole seconds, and TensorBoard reads
        # them in order: the next file needs a later second.
        time.sleep(1.0 - time.time() % 1.0)
        self._hide_after(last)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Writes a split's scalars."""
        if not self._writes:
            return
        scalars = dict(logs)
        if split == "train":
            scalars |= self.trainer.learning_rates()
            for name, value in self.trainer.accounts.summary().items():
                scalars[f"time/{name}"] = value
        self._logged.add(split)
        self._write(split, step, lambda: _write_scalars(scalars))
        if split == "eval":
            self._write_hyperparameters("eval")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Marks the run as done in the HPARAMS tab."""
        if not self._writes:
            return
        # A run that was already done when it was restarted has logged nothing.
        if "train" in self._logged:
            self._write_hyperparameters("train")
        if self._session is not None:
            self._write_summary(self._session, _session_end())

    def close(self) -> None:
        """Closes the event files."""
        self._write_waiting()
        self._close_writers()
        self._session = None
        self._logged = set()
        self._waiting = []

    @property
    def _writes(self) -> bool:
        trainer = self.trainer
        return trainer.model_dir is not None and trainer.plugin.is_chief

    def _name(self, split: str) -> str:
        if self.following:
            split = "evaluator" if split == "eval" else f"evaluator_{split}"
        return f"tensorboard/{split}"

    def _directory(self, split: str) -> str:
        assert self.trainer.model_dir is not None
        return os.path.join(self.trainer.model_dir, self._name(split))

    def _write(self, split: str, step: int, write: Callable[[], None]) -> None:
        self._waiting.append((split, step, write))
        self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            for split, step, write in self._waiting:
                with self._writer(split).as_default(step=step):
                    write()
            # Only a flush shows whether the disk has taken the data.
            for writer in self._writers.values():
                writer.flush()
        except REFUSALS as error:
            # TensorBoard does not read past a torn record, so start new files.
            self._close_writers()
            logging.warning(
                "TensorBoard's files cannot be written; %d entries are kept "
                "for later. %s",
                len(self._waiting),
                error,
            )
        else:
            self._waiting = []

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            # Closing flushes, which fails again on a full disk; the data is
            # kept.
            with contextlib.suppress(*REFUSALS):
                writer.close()
        self._writers = {}

    def _hide_after(self, step: int) -> None:
        for split in self._splits:
            # A new run has nothing to hide, and gets no stray event file.
            if tf.io.gfile.isdir(self._directory(split)):
                # A log that was taken back hides its own step, too.
                last = step - (split in self.trainer.taken_back)
                _hide_after(self._directory(split), last)

    @property
    def _splits(self) -> Iterable[str]:
        loop = self.trainer.loop  # An evaluator beside training has none.
        return dict.fromkeys(["train", "eval", *(loop.sets if loop else ())])

    def _writer(self, split: str) -> tf.summary.SummaryWriter:
        if split not in self._writers:
            assert self.trainer.model_dir is not None
            atomic_files.refuse_links(self.trainer.model_dir, self._name(split))
            self._writers[split] = tf.summary.create_file_writer(
                self._directory(split)
            )
        return self._writers[split]

    def _write_hyperparameters(self, split: str) -> None:
        """Starts the session of the HPARAMS tab, once per run."""
        if self._session is None and self._hyperparameters:
            self._session = split
            summary = _plugin("hparams").hparams_pb(
                self._hyperparameters, start_time_secs=self._started
            )
            self._write_summary(split, summary)

    def _write_summary(self, split: str, summary: Any) -> None:
        # At step 0, which `_hide_after` never discards.
        content = summary.SerializeToString()
        self._write(
            split, 0, lambda: tf.summary.experimental.write_raw_pb(content)
        )


def _write_scalars(scalars: dict[str, float]) -> None:
    # `tf.summary.scalar` takes an operation for each, which costs a fast step's
    # log more than all else. The bytes of messages, one after the other, are
    # those of a message with the values of all.
    messages = (
        _plugin("scalar").scalar_pb(name, value).SerializeToString()
        for name, value in scalars.items()
    )
    tf.summary.experimental.write_raw_pb(b"".join(messages))


def literal_bindings(config: str) -> dict[str, Scalar]:
    """Returns the scalar parameters in a gin configuration.

    Returns:
        Values by names such as `"Adam.learning_rate"`. Macros are replaced by
        their values; lists, `None` and references are left out.
    """
    names = _Names()
    found: dict[str, Scalar] = {}
    for statement in config_parser.ConfigParser(config, names):
        if not isinstance(statement, config_parser.BindingStatement):
            continue
        key = "/".join(filter(None, (statement.scope, statement.selector)))
        if not statement.arg_name:
            names.macros[key] = statement.value
        elif isinstance(statement.value, bool | int | float | str):
            found[f"{key}.{statement.arg_name}"] = statement.value
    return found


class _Names(config_parser.ParserDelegate):
    """Resolves names for the parser: macros become their values."""

    def __init__(self) -> None:
        self.macros: dict[str, Any] = {}

    def configurable_reference(self, name: str, evaluate: bool) -> None:
        # Nothing is imported or called here: a reference is no scalar.
        return None

    def macro(self, name: str) -> Any:
        return self.macros.get(name)


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
    # Elsewhere first: TensorBoard may be reading the directory, and must find
    # the file whole.
    with tempfile.TemporaryDirectory() as folder:
        records = os.path.join(folder, "events")
        with tf.io.TFRecordWriter(records) as writer:
            # TensorBoard takes the first start event for that of a new run,
            # and discards steps only at the second one.
            for event in (version, start, start):
                writer.write(event.SerializeToString())
        with open(records, "rb") as file:
            write_whole(path, file.read())


@functools.cache
def _plugin(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"tensorboard.plugins.{name}.summary_v2")
    except ImportError as error:
        raise UserError(
            f"The TensorBoard callback cannot import tensorboard ({error}). "
            "Install it (pip install tensorboard) or leave @TensorBoard() out "
            "of run.callbacks."
        ) from None


def _session_end() -> Any:
    from tensorboard.plugins.hparams import api_pb2, summary

    return summary.session_end_pb(api_pb2.STATUS_SUCCESS)
