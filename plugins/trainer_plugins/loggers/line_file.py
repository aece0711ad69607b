"""`LineFile`: a logger that appends lines of text to a file of the run."""

import abc
import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from trainer import Logger
from trainer.plugin_api import Entry, files, run_paths, write_whole


class Key(NamedTuple):
    """What a line is of.

    Attributes:
        step: the optimizer steps that were done.
        split: whose values it has.
        final: whether only the end of a run has logged them.
    """

    step: float
    split: Any
    final: bool = False


class LineFile(Logger):
    """Appends a line for each entry.

    A run that was killed after its last checkpoint repeats some steps. When
    training starts, the lines of these steps are dropped, and so is a torn
    last line; a run that goes on also drops what only the end of a shorter one
    has logged. The file is opened for each line; on object stores such as
    gs://, this uploads the whole file each time. Lines that cannot be written,
    as on a full disk, are a warning: they are kept, in checkpoints as well,
    and written later.

    A side-car evaluator (`--mode=continuous_eval`) writes to a file of its
    own. With one writer per file, lines are never interleaved, or lost when
    the other process rewrites the file. Each step of a split has one line
    there, however often the evaluator was killed.

    Attributes:
        file_name: in the run directory.
        evaluator_file_name: the same, of a side-car evaluator.
    """

    file_name: ClassVar[str]
    evaluator_file_name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._failed = False
        self._there: set[Key] = set()

    @abc.abstractmethod
    def as_text(self, entries: Sequence[Entry]) -> str:
        """The lines of entries."""

    @abc.abstractmethod
    def key_of(self, line: bytes) -> Key | None:
        """What a line is of; `None` for text that no run has written."""

    def setup(self) -> None:
        """Reads what a previous evaluator has written.

        Raises:
            UserError: the file is a link.
        """
        if not self.writes:
            return
        run_paths.prepare_file(*os.path.split(self.where))
        if self.following:
            # The evaluator is the only writer of its file, so a torn line is
            # its own.
            self.take_back(math.inf, final=False)
            self._there = {key for key in map(self.key_of, self.lines()) if key}

    def take_back(self, step: float, *, final: bool) -> None:
        """See `Logger.take_back`.

        Raises:
            UserError: the file cannot be written.
        """
        try:
            self._drop_after(step, final=final)
        except OSError as error:
            raise files.cannot(
                f"{self.where} cannot be written", error
            ) from None

    def write(self, entries: Sequence[Entry]) -> None:
        """See `Logger.write`."""
        # An evaluator that was killed between a line and its record evaluates
        # the step again.
        entries = [
            one
            for one in entries
            if Key(one.step, one.split) not in self._there
        ]
        # A failed append may have written a part of the lines.
        if self._failed:
            self._drop_after(math.inf)
            there = set(self.lines())
            entries = [
                one
                for one in entries
                # A line holds its step and split, so equal lines are the same
                # log.
                if self.as_text([one]).encode() not in there
            ]
        self._failed = True
        self.make_directory()
        files.append(self.where, self.as_text(entries))
        self.run.written.add(self.where)
        self._failed = False

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        super().load_state(state)
        # Some may be in the file: the earlier process may have written them
        # after the checkpoint.
        self._failed = bool(self._waiting)

    @property
    def where(self) -> str:
        """The path of the file."""
        name = self.evaluator_file_name if self.following else self.file_name
        return os.path.join(self.run.model_dir or "", name)

    def make_directory(self) -> None:
        """Creates the run directory, if it is not there."""
        files.make_directory(os.path.dirname(self.where))

    def lines(self) -> list[bytes]:
        """The lines of the file; none if there is no file."""
        if not files.exists(self.where):
            return []
        return files.read(self.where).splitlines(keepends=True)

    def _drop_after(self, step: float, *, final: bool = False) -> None:
        """Atomically drops the lines of later steps and incomplete lines.

        Args:
            step: the last one whose lines stay.
            final: whether lines go that only the end of a run has logged.
        """
        lines = self.lines()
        # A killed process may leave a torn last line, which is expected and
        # worthless.
        whole = lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines
        keys = [self.key_of(line) for line in whole]
        before = b"".join(lines)
        if None in keys:
            # Somebody may want what was not written by a run.
            why = "some lines are not logs of a run"
            files.keep_copy(self.where, before, why)
        after = b"".join(
            line
            for line, key in zip(whole, keys, strict=True)
            if key is not None
            and key.step <= step
            and not (final and key.final)
        )
        if after != before:
            write_whole(self.where, after)
