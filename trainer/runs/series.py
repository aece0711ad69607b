"""The values that a run has logged, from `metrics.jsonl`."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from trainer.loop.evaluation_sets import names_in_logs
from trainer.runtime.files import read

# By metric, as monitors name it: the steps and their values. NaN stands for
# a value that was not finite.
Series: TypeAlias = dict[str, dict[int, float]]
_FILES = ("metrics.jsonl", "metrics_evaluator.jsonl")
_MOST_STEPS = 2**53


def read_series(path: str) -> tuple[Series, list[str]]:
    """Reads the values of a run.

    Args:
        path: the run directory.

    Returns:
        The values, and sentences on what cannot be read.
    """
    series: Series = {}
    notes = []
    missing = 0
    for name in _FILES:
        try:
            content = read(os.path.join(path, name))
        except FileNotFoundError:
            missing += 1
            continue
        except (OSError, MemoryError) as error:
            notes.append(f"{name} cannot be read: {_why(error)}.")
            continue
        lines = content.split(b"\n")
        # What follows the last line break is a line that is being written, or
        # was when its process was killed.
        if torn := lines.pop():
            notes.append(
                f"the last line of {name} is torn, and is left out "
                f"({len(torn)} bytes)."
            )
        wrong = sum(not _add(line, series) for line in lines)
        if wrong:
            what = "line is not a log" if wrong == 1 else "lines are not logs"
            notes.append(f"{wrong} {what} of a run in {name}.")
    if missing == len(_FILES):
        notes.append("no metrics.jsonl: @JsonLines() writes it.")
    return series, notes


def last(values: Mapping[int, float]) -> tuple[int, float]:
    """The last step and its value."""
    step = max(values)
    return step, values[step]


def best(values: Mapping[int, float], mode: str) -> tuple[int, float] | None:
    """The best step and its value; `None` if none is finite."""
    sign = 1.0 if mode == "min" else -1.0
    finite = [(sign * v, s) for s, v in values.items() if math.isfinite(v)]
    if not finite:
        return None
    # Of equal ones the first.
    value, step = min(finite)
    return step, sign * value


def _add(line: bytes, series: Series) -> bool:
    """Adds the values of a line; returns whether it is a log of a run."""
    try:
        found = json.loads(line)
    # Python's JSON parser recurses, and limits the digits of an integer.
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    step, split = found.pop("step", None), found.pop("split", None)
    if not isinstance(split, str) or not _is_step(step):
        return False
    for name, value in names_in_logs(split, found).items():
        if value is None or _is_number(value):
            number = math.nan if value is None else float(value)
            series.setdefault(name, {})[int(step)] = number
    return True


def _is_step(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= _MOST_STEPS


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    # An integer that is too large for a float.
    except OverflowError:
        return False


def _why(error: BaseException) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or type(error).__name__
