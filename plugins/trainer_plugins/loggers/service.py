"""`Service`: a logger that hands values to a tracking service."""

import abc
import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from trainer import Logger, UserError
from trainer.plugin_api import Entry, files, run_paths, schema
from trainer_plugins.loggers.hyperparameters import hyperparameters

_FILE = schema.record({"id": str}, {"last": dict[str, schema.Count]})


class Service(Logger):
    """Logs to a service that can add values, but cannot take any back.

    A resumed run continues the same run of the service, whose id is in a file
    of the run directory. Repeated steps are not written again: the service
    keeps the first values, which are the same unless the configuration was
    changed in between. Values that were logged only at the end of a shorter run
    stay.

    The values of a split are under its name, such as `train/loss`.

    Attributes:
        package: the package that has to be installed; also the extra's name.
    """

    package: ClassVar[str]
    in_background = True
    may_lose = True

    def __init__(self) -> None:
        super().__init__()
        self._id: str | None = None
        # The last step of each name that the service has.
        self._last: dict[str, int] = {}
        self._ended = False

    @abc.abstractmethod
    def open(self, known: str | None, parameters: Mapping[str, Any]) -> str:
        """Begins a run of the service, or continues one.

        Args:
            known: the id of the one to continue.
            parameters: hyperparameters by name.

        Returns:
            The id.
        """

    @abc.abstractmethod
    def send(self, step: int, values: Mapping[str, Any]) -> None:
        """Sends values of a step, by names such as `"train/loss"`."""

    def settle(self) -> None:  # noqa: B027 - most services keep all they take
        """Waits until all values sent would survive the end of this process."""

    @abc.abstractmethod
    def end(self, *, done: bool) -> None:
        """Ends the run of the service in this attempt.

        Args:
            done: whether it was trained to its end.
        """

    def setup(self) -> None:
        """Checks the run.

        Raises:
            UserError: it may roll back, or its directory is not suitable.
        """
        name, guard = type(self).__name__, self.run.spec.guard
        if guard is not None and guard.rolls_back:
            raise UserError(
                f"{name} cannot take back the steps of a rollback: set "
                "Guard.action = 'stop', or leave "
                f"@{name}() out of run.callbacks."
            )
        if not self.writes:
            return
        run_paths.prepare_file(*os.path.split(self._file))
        if self.following:
            self._open()

    def take_back(self, step: int, *, final: bool) -> None:
        """Opens the run of the service, which keeps the first values."""
        self._open()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """The run is complete."""
        self._ended = True

    def close(self) -> None:
        """Writes waiting entries, and ends the run of the service."""
        super().close()
        if self._id is not None:
            self.end(done=self._ended or self.following)
            self._id = None
        self._ended = False

    def write(self, entries: Sequence[Entry]) -> None:
        """See `Logger.write`."""
        for one in entries:
            values = {
                f"{one.split}/{name}": value
                for name, value in one.values.items()
            }
            new = {
                name: value
                for name, value in values.items()
                # Also where a part of the entries was written, and the rest
                # was refused.
                if one.step > self._last.get(name, -1)
            }
            if new:
                self.send(one.step, new)
                self._last |= dict.fromkeys(new, one.step)
        self.settle()
        self._note()

    def package_itself(self) -> ModuleType:
        """The package of the service, imported now.

        Raises:
            UserError: it is not installed.
        """
        try:
            return importlib.import_module(self.package)
        except ImportError as error:
            name = type(self).__name__
            raise UserError(
                f"{name} cannot import {self.package} ({error}). Install it "
                f"(pip install 'keras-trainer-plugins[{self.package}]') or "
                f"leave @{name}() out of run.callbacks."
            ) from None

    @property
    def run_name(self) -> str:
        """The name of the run in the service: that of its directory."""
        directory = (self.run.model_dir or "").rstrip("/")
        name = os.path.basename(directory)
        return f"{name}-evaluator" if self.following else name

    @property
    def _file(self) -> str:
        suffix = "_evaluator" if self.following else ""
        name = f"{self.package}{suffix}.json"
        return os.path.join(self.run.model_dir or "", name)

    def _open(self) -> None:
        known = files.read_record(self._file, _FILE, aside="")
        self._last = known.get("last", {})
        self._id = self.open(known.get("id"), hyperparameters(self.run))
        self._note()

    def _note(self) -> None:
        """Keeps the id and the last steps sent, for the next attempt."""
        files.make_directory(os.path.dirname(self._file))
        files.write_json(self._file, {"id": self._id, "last": self._last})
