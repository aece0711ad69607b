"""`LineFile`: a logger that appends lines of text to a file of the run."""

import abc
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from trainer import Logger
from trainer.plugin_api import Entry, files, run_paths


class Key(NamedTuple):
    """The log that a line holds.

    Attributes:
        step: the optimizer steps that were done.
        split: whose values it has.
        final: whether they are logged only at the end of a run.
    """

    step: float
    split: Any
    final: bool = False


class LineFile(Logger):
    """Appends a line for each entry.

    A run that was killed after its last checkpoint repeats some steps. When
    training starts, the lines of these steps are dropped, and so is a torn last
    line; a run that continues a shorter one also drops lines that were logged
    only at its end. Only the end of the file is read for that, as its steps
    never decrease. The file is opened for each line; on object stores such as
    gs://, this uploads the whole file each time. Lines that cannot be written,
    as on a full disk, are a warning: they are kept, in checkpoints as well, and
    written later.

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
        # Whether the next lines may already be there, in part.
        self._unsure = False

    @abc.abstractmethod
    def as_text(self, entries: Sequence[Entry]) -> str:
        """The lines of entries."""

    @abc.abstractmethod
    def key_of(self, line: bytes) -> Key | None:
        """The log that a line holds; `None` for text not written by a run."""

    def setup(self) -> None:
        """Reads the lines of a previous evaluator.

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
            self._unsure = True

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
        # A failed append may have written a part of the lines. An evaluator
        # that was killed between a line and its record evaluates the step
        # again, and may measure other digits.
        if self._unsure:
            self._drop_after(math.inf)
            there = [*self._since(entries[0].step)]
            # A line holds its step and split, so equal lines are the same log.
            texts = {text for _, text, _ in there}
            keys = {key for _, _, key in there if self.following}
            entries = [
                one
                for one in entries
                if Key(one.step, one.split) not in keys
                and self.as_text([one]).encode() not in texts
            ]
        self._unsure = True
        self.make_directory()
        files.append(self.where, self.as_text(entries))
        self.run.written.add(self.where)
        self._unsure = not entries

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        super().load_state(state)
        # Some may be in the file: the earlier process may have written them
        # after the checkpoint.
        self._unsure = self._unsure or bool(self._waiting)

    @property
    def where(self) -> str:
        """The path of the file."""
        name = self.evaluator_file_name if self.following else self.file_name
        return os.path.join(self.run.model_dir or "", name)

    def make_directory(self) -> None:
        """Creates the run directory, if it is not there."""
        files.make_directory(os.path.dirname(self.where))

    def _since(self, step: float) -> Iterator[tuple[int, bytes, Key | None]]:
        """The lines from a step on, the last one first.

        Yields:
            Where it begins; the line; its key, or `None` if no run has written
            it whole.
        """
        if not files.exists(self.where):
            return
        for start, text in files.lines_from_end(self.where):
            key = self.key_of(text) if text.endswith(b"\n") else None
            if key is not None and key.step < step:
                return
            yield start, text, key

    def _newest(self, step: float) -> float:
        """The newest step of a line, up to a step."""
        keys = (key for _, _, key in self._since(-math.inf))
        steps = (key.step for key in keys if key and key.step <= step)
        return next(steps, -math.inf)

    def _drop_after(self, step: float, *, final: bool = False) -> None:
        """Atomically drops the lines of later steps and incomplete lines.

        Args:
            step: the last one whose lines stay.
            final: whether to drop lines that are logged only at the end of a
                run.
        """
        lines = [*self._since(self._newest(step))][::-1]
        # A killed process may leave a torn last line, which is expected and
        # worthless.
        if odd := [x for _, x, key in lines if not key and x.endswith(b"\n")]:
            # A user may want lines that were not written by a run.
            why = "some lines are not logs of a run"
            files.keep_copy(self.where, b"".join(odd), why)
        gone = [
            start
            for start, _, key in lines
            if not key or key.step > step or (final and key.final)
        ]
        if gone:
            rest = [x for start, x, _ in lines if start not in gone]
            whole = sum(start < gone[0] for start, _, _ in lines)
            files.cut(self.where, gone[0], b"".join(rest[whole:]))
