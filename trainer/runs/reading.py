"""Reads a run directory in any state, and writes nothing into it."""

import dataclasses
import datetime
import os
import re
from typing import Any

from trainer.cli.config.statements import statements
from trainer.runs.finding import newest_step
from trainer.runs.series import Series, read_series
from trainer.runs.status import read_status
from trainer.runtime.files import read

_BINDING = re.compile(r"(?P<name>[\w./]+) = (?P<value>.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known about a run.

    Attributes:
        name: its path below the folder that was searched.
        path: its directory.
        state: see `trainer.runs.status.Status`.
        step: the last step that was logged or saved; `None` if none was.
        start: when its last attempt began, as in `run.json`.
        seconds: how long its last attempt took, if it has ended.
        series: the values that it has logged.
        configuration: value by parameter, as gin text: what was configured.
        defaults: likewise, but all that was used.
        notes: sentences on what is wrong.
    """

    name: str
    path: str
    state: str
    step: int | None
    start: str | None
    seconds: float | None
    series: Series
    configuration: dict[str, str]
    defaults: dict[str, str]
    notes: list[str]


def read_run(name: str, path: str) -> Run:
    """Reads a run directory."""
    status = read_status(path)
    series, notes = read_series(path)
    configuration, more = _bindings(path, "config.gin")
    defaults, _ = _bindings(path, "operative_config.gin")
    steps = [max(values) for values in series.values()]
    saved = newest_step(_names(os.path.join(path, "checkpoints")))
    if saved is not None:
        steps.append(saved)
    start, end = (_time(status.record.get(key)) for key in ("start", "end"))
    return Run(
        name=name,
        path=path,
        state=status.state,
        step=max(steps, default=None),
        start=start.isoformat() if start else None,
        seconds=_between(start, end),
        series=series,
        configuration=configuration,
        defaults=defaults,
        notes=[*status.notes, *notes, *more],
    )


def _bindings(path: str, name: str) -> tuple[dict[str, str], list[str]]:
    try:
        text = read(os.path.join(path, name)).decode()
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        return {}, [f"{name} cannot be read: {why}."]
    found = map(_BINDING.fullmatch, statements(text))
    return {one["name"]: one["value"] for one in found if one}, []


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _time(value: Any) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _between(
    start: datetime.datetime | None, end: datetime.datetime | None
) -> float | None:
    try:
        return (end - start).total_seconds() if start and end else None
    # One of them names a time zone, the other does not.
    except TypeError:
        return None
