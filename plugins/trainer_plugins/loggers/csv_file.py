"""The logger CSV: writes metrics.csv, one row for each log."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.plugin_api import Entry, configurable, files, write_whole
from trainer_plugins.loggers.line_file import Key, LineFile

_KEYS = ["step", "split", "final"]


@configurable(module="trainer_plugins.loggers")
class CSV(LineFile):
    """Appends a row for each log to `metrics.csv`.

    The columns are `step`, `split`, `final` (`True` for values that are logged
    only at the end of a run) and the names of the values; a cell is empty where
    a log does not have the value. When a new name comes, it becomes the last
    column, and the file is rewritten. Only numbers are written.

    See `LineFile` for how rows are handled when a run is killed and resumed. A
    side-car evaluator writes such rows to `metrics_evaluator.csv`.
    """

    file_name = "metrics.csv"
    evaluator_file_name = "metrics_evaluator.csv"

    def __init__(self) -> None:
        super().__init__()
        self._columns: list[str] = []

    def setup(self) -> None:
        """See `LineFile.setup`."""
        # Those of another run, if this logger is used again.
        self._columns = []
        super().setup()

    def write(self, entries: Sequence[Entry]) -> None:
        """See `Logger.write`."""
        names = dict.fromkeys(n for one in entries for n in one.values)
        if not self._columns or not names.keys() <= set(self._columns):
            self._widen(list(names))
        super().write(entries)

    def as_text(self, entries: Sequence[Entry]) -> str:
        """See `LineFile.as_text`."""
        keys = [
            {"step": one.step, "split": one.split, "final": one.final or ""}
            for one in entries
        ]
        return _rows(
            self._columns,
            [{**e.values, **key} for e, key in zip(entries, keys, strict=True)],
        )

    def key_of(self, line: bytes) -> Key | None:
        """See `LineFile.key_of`; that of the header is always kept."""
        if not line.endswith(b"\n"):
            return None
        try:
            step, split, final = next(csv.reader([line.decode()]))[:3]
            number = -math.inf if step == "step" else int(step)
        except (ValueError, StopIteration, csv.Error):
            return None
        return Key(number, split, final == "True")

    def _widen(self, names: list[str]) -> None:
        """Gives the file columns for the names, if it has none."""
        there = self._header()
        columns = list(dict.fromkeys([*(there or _KEYS), *names]))
        if columns != there:
            rows = files.read(self.where).partition(b"\n")[2] if there else b""
            # Empty cells.
            more = b"," * (len(columns) - len(there)) + b"\n"
            header = dict(zip(columns, columns, strict=True))
            text = _rows(columns, [header]).encode()
            self.make_directory()
            write_whole(self.where, text + rows.replace(b"\n", more))
        self._columns = columns

    def _header(self) -> list[str]:
        """The columns of the file; none if there is no file."""
        if not files.exists(self.where):
            return []
        with files.open_to_read(self.where) as file:
            line = file.readline()
        if line.startswith(",".join(_KEYS).encode()) and self.key_of(line):
            return next(csv.reader([line.decode()]))
        if line:
            files.set_aside(self.where, "it has no header")
        return []


def _rows(columns: list[str], rows: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return file.getvalue()
