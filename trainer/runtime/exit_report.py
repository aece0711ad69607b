"""The exit report of a process, for the one that started it.

The exit code alone does not tell whether two failures are the same. A
supervisor names a file in `TRAINER_EXIT_REPORT`, and the process writes its
report there at the end:

    {"pid": 4711, "exit_code": 1, "error": "ValueError: no", "step": 40}

The file is there from the first step on, with an `exit_code` of `null`: from
then on the process may have something to save. Nothing here imports TensorFlow.
"""

import contextlib
import json
import os
import re
from typing import Any

from trainer.errors import KERAS_ADDS
from trainer.runtime import files

VARIABLE = "TRAINER_EXIT_REPORT"
# Identifies the launcher; the same in all processes that it starts.
LAUNCHER = "TRAINER_LAUNCHER"
# AutoGraph puts the actual message after a listing of stack frames.
_TRACED = "in user code:"
# After this line, TensorFlow names the operation.
_RUNNING = "Graph execution error:"
# The address of an object differs from run to run.
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
# In characters; a message may contain a whole tensor.
_MOST = 300


class ExitReport:
    """Writes how this process ends, if a report is requested."""

    def __init__(self) -> None:
        self._trainer: Any = None

    def begin(self, trainer: Any) -> None:
        """Reports before the first step that this process trains.

        Args:
            trainer: has the number of its `step`.
        """
        self._trainer = trainer
        self.write(None)

    def write(
        self, exit_code: int | None, error: BaseException | None = None
    ) -> None:
        """Writes the report.

        A failure to do so is ignored: it must not hide the reported error.
        """
        path = os.environ.get(VARIABLE)
        if not path:
            return
        # Even reading the step may fail here, such as when its device is lost.
        with contextlib.suppress(Exception):
            record = {
                "pid": os.getpid(),
                "exit_code": exit_code,
                "error": None if error is None else headline(error),
                "step": None if self._trainer is None else self._trainer.step,
            }
            # The launcher may read at any time.
            files.write_whole(path, json.dumps(record))


def headline(error: BaseException) -> str:
    """Returns the type of an exception and one line of its message.

    The result is the same in every run that fails in the same way.
    """
    kind = type(error).__name__
    inner = KERAS_ADDS.search(str(error))
    message = inner[1] if inner else str(error)
    lines = [line.strip() for line in message.splitlines()]
    lines = [line for line in lines if line not in ("", _RUNNING)] or [""]
    message = lines[-1] if lines[0] == _TRACED else lines[0]
    text = f"{kind}: {message.removeprefix(f'{kind}: ')}".removesuffix(": ")
    return _ADDRESS.sub("0x...", text)[:_MOST]


def read(path: str, *, pid: int) -> dict[str, Any]:
    """Reads a report.

    Args:
        path: the file; it need not exist.
        pid: the process that should have written it. A report of another
            process, such as its child, does not count.

    Returns:
        The report; empty if there is no valid one.
    """
    try:
        found = files.read_json(path)
    except (OSError, ValueError):
        return {}
    is_its = isinstance(found, dict) and found.get("pid") == pid
    return found if is_its else {}
