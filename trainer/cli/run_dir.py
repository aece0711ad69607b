"""The run directory: its configuration, its record, and how it ended."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
from typing import Any

import gin
import keras
import tensorflow as tf
from absl import logging

from trainer.checkpoint import storage
from trainer.cli import command
from trainer.cli.config.names import strategies_in_gin
from trainer.cli.config.written import bindings_of
from trainer.errors import StartAgain, UserError
from trainer.loop.run import Run
from trainer.runtime import schema
from trainer.runtime.files import (
    NotAFile,
    cannot,
    is_directory,
    make_directory,
    read,
    read_record,
    write_whole,
)
from trainer.runtime.memory import peak_memory
from trainer.runtime.process_exit import LAUNCHER
from trainer.runtime.run_paths import check_path

_CONFIG = "config.gin"
_OPERATIVE = "operative_config.gin"
_RUN = "run.json"
_STORED = schema.record(
    {},
    {"experiment": str, "exit_reason": str, "previous": list[dict]},
)
# git can hang on a dead network file system, and a run must not.
_GIT_SECONDS = 10.0


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
        self._run: Run | None = None

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
            # A damaged file is set aside when the run starts.
            stored = self._stored(None).get("experiment")
        except OSError as error:
            what = f"model_dir {self.path} cannot be read"
            raise cannot(what, error) from None
        if must_exist and not there:
            raise UserError(f"There is no run in {self.path}: no such folder.")
        if stored is not None and stored != self._experiment:
            raise UserError(
                f"model_dir {self.path} holds a run of the experiment "
                f"'{stored}', but this is '{self._experiment}'. Choose another "
                "--model_dir."
            )

    def start(self, run: Run) -> None:
        """Records a run before its first step; on the chief only.

        Args:
            run: built, with training data.

        Raises:
            UserError: the directory cannot be written.
        """
        try:
            record = self._new_record(run)
            make_directory(self.path)
            self._warn_of_changes()
            self._write(_CONFIG, gin.config_str())
            self._write_record(record)
            # Last: `finish` must not write where `start` could not.
            self._record, self._run = record, run
        except OSError as error:
            raise self._unwritable(error) from None

    def finish(self, reason: str, message: str | None = None) -> None:
        """Records how the run ended, if `start` was called.

        The message is a line with the details. A failure to record is only
        logged: it must not hide how the run ended.
        """
        if self._record is None or self._run is None:
            return
        spent = self._run.accounts.summary()
        self._record |= {
            "end": now(),
            "exit_reason": reason,
            "exit_message": message,
            "peak_memory": peak_memory(),
            "accounts": {
                name: round(value, 3) for name, value in spent.items()
            },
        }
        try:
            # Nobody starts a run again that is done: all that it has written
            # is on the disk before.
            self._run.synchronize()
            self._write_record(self._record)
        except OSError as error:
            logging.error("%s", self._unwritable(error))

    def give_up(self, reason: str, hangs: bool) -> bool:
        """Records that the process gives up.

        Returns:
            Whether it has hung before at the same step for the same reason:
            this is a defect, which a restart does not repair.
        """
        if hangs and self._run is not None:
            reason += f", at step {self._run.step}"
        attempts = (self._record or {}).get("previous", ())
        again = hangs and reason in [x.get("exit_message") for x in attempts]
        self.finish("error" if again else "start_again", reason)
        return again

    def continued_with(self) -> str | None:
        """Says what is saved, and which command continues from there.

        `None` where nothing was started, or by a launcher, which continues; and
        where the checkpoints cannot be listed at the moment.
        """
        if self._record is None or LAUNCHER in os.environ:
            return None
        how = "nothing was saved; start again"
        with contextlib.suppress(OSError):
            if paths := storage.listing(os.path.join(self.path, "checkpoints")):
                how = f"saved at step {storage.step_of(paths[-1])}; continue"
            return f"{how} with: {self._record['command']}"
        return None

    def _unwritable(self, error: OSError) -> UserError | StartAgain:
        return cannot(f"model_dir {self.path} cannot be written", error)

    def why_not_usable(self, error: BaseException) -> Exception | None:
        """Returns the error to raise for a file in the directory that fails."""
        name = getattr(error, "filename", None)
        if not (
            isinstance(error, OSError)
            and isinstance(name, str)
            and os.path.abspath(name).startswith(os.path.abspath(self.path))
        ):
            return None
        return cannot(f"{name} cannot be used", error)

    def _stored(self, aside: str | None) -> dict[str, Any]:
        """Returns the `run.json` of the last attempt; see `read_record`."""
        path = os.path.join(self.path, _RUN)
        return read_record(path, _STORED, aside=aside)

    def _warn_of_changes(self) -> None:
        try:
            before = read(os.path.join(self.path, _CONFIG)).decode()
        except (FileNotFoundError, NotAFile, UnicodeError):
            return
        if changes := changes_of(before, gin.config_str()):
            logging.warning(
                "%s continues with a different configuration:\n%s",
                self.path,
                "\n".join(changes),
            )

    def _new_record(self, run: Run) -> dict[str, Any]:
        previous = self._stored("")
        # One flat list; otherwise each attempt would contain all earlier ones.
        attempts = previous.pop("previous", [])
        if previous:
            # Nothing ran after it could have written another reason.
            if previous.get("exit_reason") == "running":
                previous["exit_reason"] = "killed"
            attempts = [*attempts, previous]
            # It has ended by itself, to be started again.
            if previous.get("exit_reason") in ("start_again", "interrupted"):
                with contextlib.suppress(TypeError, ValueError):
                    end = datetime.datetime.fromisoformat(previous["end"])
                    run.accounts.pause_since(end.timestamp())
        plugin = run.plugin
        known = json.dumps([attempts, dict(plugin.facts)], default=str)
        if (run.saved_under or "") not in known:
            logging.warning(
                "The checkpoint of step %d seems to be from a different run: "
                "no attempt of this one had its configuration.",
                run.step,
            )
        cluster = dict(plugin.describe())
        return {
            "experiment": self._experiment,
            "command": command.recorded(self._arguments),
            "versions": {
                "python": platform.python_version(),
                "tensorflow": tf.__version__,
                "keras": keras.__version__,
                "gin": importlib.metadata.version("gin-config"),
                "trainer": importlib.metadata.version("keras-trainer-plugins"),
            },
            "git": git(),
            # The same facts that the tasks compare in the rendezvous.
            "fingerprints": dict(plugin.facts),
            "strategy": cluster.pop("strategy", plugin.name),
            "devices": cluster.pop("devices", []),
            "cluster": cluster,
            # How the training data reaches a step.
            "data_resume": run.batches("train").resume,
            "hosts": [socket.gethostname()],
            "platform": platform.platform(),
            "executable": sys.executable,
            "start": now(),
            "end": None,
            "exit_reason": "running",
            "exit_message": None,
            "restarts": len(attempts),
            "previous": attempts,
        }

    def _write_record(self, record: dict[str, Any]) -> None:
        # Each time, because what was used changes until the end.
        self._write(_OPERATIVE, gin.operative_config_str())
        # What a strategy plugin describes may be of any type.
        self._write(_RUN, json.dumps(record, indent=2, default=str) + "\n")

    def _write(self, name: str, text: str) -> None:
        write_whole(os.path.join(self.path, name), text)


def now() -> str:
    """Returns the time in UTC, as ISO 8601 to the second."""
    time = datetime.datetime.now(datetime.UTC)
    return time.isoformat(timespec="seconds")


def git(directory: str = ".") -> dict[str, Any] | None:
    """Returns the git commit of a directory.

    Returns:
        `{"commit": hash, "dirty": whether tracked files differ}`, or `None`
        outside of a checkout or without git.
    """
    # The hash, whatever tags there are, with "-dirty" behind it.
    describe = ("describe", "--always", "--dirty", "--abbrev=64", "--exclude=*")
    try:
        done = subprocess.run(
            ["git", "-C", directory, *describe],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, _, dirty = done.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)}


def changes_of(before: str, after: str) -> list[str]:
    """Returns the bindings that were added, removed or changed.

    Bindings of `run` and of strategy plugins do not count, because the length
    of a run and its devices may change between attempts.

    Returns:
        Lines that start with `"- "` (before) or `"+ "` (after).
    """
    ignored = {name.split(".")[-1] for name in strategies_in_gin()} | {"run"}
    old, new = bindings_of(before), bindings_of(after)
    return [
        f"{sign} {name} = {found[name]}"
        for name in sorted(old.keys() | new.keys())
        if ignored.isdisjoint(name.split("/")[-1].split(".")[:-1])
        if old.get(name) != new.get(name)
        for sign, found in (("-", old), ("+", new))
        if name in found
    ]
