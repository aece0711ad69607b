"""How a run stands: running, killed, or how it has ended."""

import datetime
import json
import os
import socket
import time
from typing import Any, NamedTuple

from trainer.runtime.files import read
from trainer.runtime.processes import age, is_alive

_NOT_RECORDED = "not recorded"
# Both clocks count seconds, one of them from a rounded beginning.
_CLOCK_SECONDS = 5.0


class Status(NamedTuple):
    """How a run stands.

    Attributes:
        state: the `exit_reason` of `run.json`; `"killed"` where that still
            says `"running"`, but no process does.
        record: what `run.json` holds; empty if it cannot be read.
        notes: sentences on what is wrong.
    """

    state: str
    record: dict[str, Any]
    notes: list[str]


def read_status(path: str) -> Status:
    """Reads `run.json` and `run.lock` of a run directory."""
    holder = _read_json(os.path.join(path, "run.lock"))
    alive = _is_alive(holder) if isinstance(holder, dict) else False
    record = _read_json(os.path.join(path, "run.json"))
    reason = record.get("exit_reason") if isinstance(record, dict) else None
    if not isinstance(reason, str):
        state = "running" if alive else _NOT_RECORDED
        return Status(state, {}, [_what_is_wrong(record)])
    message = record.get("exit_message")
    notes = [message] if isinstance(message, str) and reason != "done" else []
    # The next attempt of a run that has ended begins with the lock.
    if alive:
        return Status("running", record, [])
    if reason == "running" and alive is None:
        host = holder.get("host") if isinstance(holder, dict) else None
        notes.append(
            f"whether it still runs can only be told on its host, {host}."
        )
    elif reason == "running":
        reason = "killed"
    return Status(reason, record, notes)


def _what_is_wrong(record: Any) -> str:
    if isinstance(record, FileNotFoundError):
        return "no run.json: it was started from Python, or killed early."
    if isinstance(record, OSError | ValueError):
        why = getattr(record, "strerror", None) or "it is not JSON"
        return f"run.json cannot be read: {why}."
    return "run.json is not the record of a run."


def _read_json(path: str) -> Any:
    """Returns what a file holds, or the error that it raises."""
    try:
        return json.loads(read(path))
    except (OSError, ValueError) as error:
        return error
    except RecursionError as error:
        return ValueError(str(error))


def _is_alive(holder: dict[str, Any]) -> bool | None:
    """Whether the process that holds the lock runs; `None` if unknown.

    The lock itself is not tried: a run that starts at that moment would be
    refused.
    """
    if holder.get("host") != socket.gethostname():
        return None
    pid: Any = holder.get("pid")
    if not is_alive(pid):
        return False
    seconds = age(pid)
    locked = _seconds(holder.get("start"))
    # Numbers are used again: by a process that began after the lock.
    if seconds is None or locked is None:
        return True
    return time.time() - seconds <= locked + _CLOCK_SECONDS


def _seconds(start: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(start).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
