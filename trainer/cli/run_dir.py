"""The run directory: its configuration, its record, and how it ended."""

import json
import os
import platform
import socket
import sys
from typing import Any

import gin
from absl import logging

from trainer.cli import command, provenance
from trainer.cli.config import diff
from trainer.cli.config.names import sentence
from trainer.errors import UserError
from trainer.loop.goodput import Accounts
from trainer.runtime import schema
from trainer.runtime.files import (
    NotAFile,
    exists,
    is_directory,
    make_directory,
    read,
    read_json,
    remove,
    set_aside,
    write_whole,
)
from trainer.runtime.memory import peak_memory
from trainer.runtime.run_paths import check_path
from trainer.strategy.plugin import StrategyPlugin

_CONFIG = "config.gin"
_OPERATIVE = "operative_config.gin"
_RUN = "run.json"
_STORED = schema.record(
    {},
    {
        "experiment": schema.text,
        "exit_reason": schema.text,
        "previous": schema.list_of(schema.record({})),
    },
)


class RunDir:
    """Writes `config.gin`, `operative_config.gin` and `run.json`.

    Every file is written atomically. Paths may be local, or any that
    `tf.io.gfile` supports, such as `gs://`.

    Args:
        path: the run directory; it need not exist.
        experiment: the experiment's name.
        arguments: the command line, without the program's name.

    Attributes:
        path: as given.
    """

    def __init__(
        self, path: str, *, experiment: str, arguments: list[str]
    ) -> None:
        self.path = path
        self._experiment = experiment
        self._arguments = arguments
        self._record: dict[str, Any] | None = None
        self._accounts: Accounts | None = None

    def check(self, *, must_exist: bool = False) -> None:
        """Refuses a directory that this run cannot use.

        Reads only, so that every process of a cluster may call it.

        Raises:
            UserError: it is a file or below one, it holds a run of another
                experiment, or there is no run.
        """
        check_path(self.path)
        try:
            there = is_directory(self.path)
            stored = self._stored().get("experiment")
        except ValueError:
            stored = None  # The damaged file is set aside when the run starts.
        except OSError as error:
            raise UserError(
                f"model_dir {self.path} cannot be read: {sentence(error)}"
            ) from None
        if must_exist and not there:
            raise UserError(f"There is no run in {self.path}: no such folder.")
        if stored is not None and stored != self._experiment:
            raise UserError(
                f"model_dir {self.path} holds a run of the experiment "
                f"'{stored}', and this is '{self._experiment}'. Choose "
                "another --model_dir."
            )

    def start(
        self,
        plugin: StrategyPlugin,
        *,
        data_resume: str | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        """Records the run before it starts; on the chief only.

        Args:
            plugin: the strategy in use.
            data_resume: how the training data reaches a step, see
                `trainer.data.batches.Resume`.
            accounts: how the run spends its time, for the final record.

        Raises:
            UserError: the directory cannot be written.
        """
        try:
            record = self._new_record(plugin)
            record["data_resume"] = data_resume
            make_directory(self.path)
            self._warn_of_changes()
            # What was configured is known now; what was used changes until the
            # end, so `finish` writes that file again.
            self._write(_CONFIG, gin.config_str())
            self._write(_OPERATIVE, gin.operative_config_str())
            self._write(_RUN, _as_json(record))
            # Last: `finish` must not write where `start` could not.
            self._record, self._accounts = record, accounts
        except OSError as error:
            raise self._unwritable(error) from None

    def finish(self, reason: str, message: str | None = None) -> None:
        """Records how the run ended, if `start` was called.

        The message is a line with the details. A failure to record is only
        logged: it must not hide how the run ended.
        """
        if self._record is None:
            return
        self._record |= {
            "end": provenance.now(),
            "exit_reason": reason,
            "exit_message": message,
            "peak_memory": peak_memory(),
        }
        if self._accounts is not None:
            self._record["accounts"] = {
                name: round(value, 3)
                for name, value in self._accounts.summary().items()
            }
        try:
            self._write(_OPERATIVE, gin.operative_config_str())
            self._write(_RUN, _as_json(self._record))
        except OSError as error:
            logging.error("%s", self._unwritable(error))

    def why_not_writable(self) -> UserError | None:
        """Tries to write to the directory; returns `None` if that works."""
        # Permissions do not tell: root, network file systems and full disks all
        # behave differently from what the mode bits say.
        probe = os.path.join(self.path, f".probe-{_process()}")
        try:
            make_directory(self.path)
            write_whole(probe, "")
            remove(probe)
        except OSError as error:
            return self._unwritable(error)
        return None

    def _unwritable(self, error: BaseException) -> UserError:
        return UserError(
            f"model_dir {self.path} cannot be written: {sentence(error)}"
        )

    def _stored(self) -> dict[str, Any]:
        """Returns the `run.json` of the last attempt; empty without one.

        Raises:
            ValueError: the file is damaged.
        """
        path = os.path.join(self.path, _RUN)
        if not exists(path):
            return {}
        stored: dict[str, Any] = read_json(path)
        _STORED(stored, "it")
        return stored

    def _previous(self) -> dict[str, Any]:
        """As `_stored`, but sets a damaged file aside."""
        try:
            return self._stored()
        except ValueError as error:
            set_aside(os.path.join(self.path, _RUN), str(error))
            return {}

    def _warn_of_changes(self) -> None:
        path = os.path.join(self.path, _CONFIG)
        if not exists(path):
            return
        try:
            before = read(path).decode()
        except (NotAFile, UnicodeError) as error:
            set_aside(path, str(error))
            return
        changes = diff.changes(before, gin.config_str())
        if changes:
            logging.warning(
                "%s continues with another configuration:\n%s",
                self.path,
                "\n".join(changes),
            )

    def _new_record(self, plugin: StrategyPlugin) -> dict[str, Any]:
        previous = self._previous()
        # One flat list; otherwise each attempt would contain all earlier ones.
        attempts = previous.pop("previous", [])
        if previous:
            # Nothing ran after it could have written another reason.
            if previous.get("exit_reason") == "running":
                previous["exit_reason"] = "killed"
            attempts = [*attempts, previous]
        cluster = dict(plugin.describe())
        return {
            "experiment": self._experiment,
            "command": command.recorded(self._arguments),
            "versions": provenance.versions(),
            "git": provenance.git(),
            # The same facts that the tasks compare in the rendezvous.
            "fingerprints": dict(plugin.facts),
            "strategy": cluster.pop("strategy", plugin.name),
            "devices": cluster.pop("devices", []),
            "cluster": cluster,
            "hosts": [socket.gethostname()],
            "platform": platform.platform(),
            "executable": sys.executable,
            "start": provenance.now(),
            "end": None,
            "exit_reason": "running",
            "exit_message": None,
            "restarts": len(attempts),
            "previous": attempts,
        }

    def _write(self, name: str, text: str) -> None:
        write_whole(os.path.join(self.path, name), text)


def _process() -> str:
    # Several processes of a cluster may try the same directory at once.
    return f"{socket.gethostname()}-{os.getpid()}"


def _as_json(record: dict[str, Any]) -> str:
    # What a strategy plugin describes may be of any type.
    return json.dumps(record, indent=2, default=str) + "\n"
