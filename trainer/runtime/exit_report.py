"""How a process tells the one that started it what became of it.

The exit code alone does not say whether two failures are the same. Whoever
supervises a process names a file in `TRAINER_EXIT_REPORT`; at its end the
process writes there

    {"pid": 4711, "exit_code": 1, "error": "ValueError: no", "step": 40}

and with exit code 75 also `"for_others"`, see `trainer.errors.StartAgain`.
Nothing here imports TensorFlow.
"""

import contextlib
import json
import os
import re
from typing import Any, Protocol

from trainer.errors import StartAgain
from trainer.runtime import local_files, schema

VARIABLE = "TRAINER_EXIT_REPORT"
# Names the launcher, the same in all processes that it starts.
LAUNCHER = "TRAINER_LAUNCHER"
# AutoGraph writes the message proper below a listing of stack frames.
_TRACED = "in user code:"
# Below this TensorFlow names the operation.
_RUNNING = "Graph execution error:"
# Where an object lies differs from run to run.
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_MOST = 300
_REPORT = schema.record(
    {"pid": schema.integer()},
    {
        "exit_code": schema.integer(),
        "error": schema.optional(schema.text),
        "step": schema.optional(schema.integer()),
    },
)


class _HasStep(Protocol):
    step: int


class ExitReport:
    """Writes how this process ends, if somebody asked for it.

    Attributes:
        trainer: the Trainer whose step is told, once there is one.
    """

    def __init__(self) -> None:
        self.trainer: _HasStep | None = None

    def write(self, exit_code: int, error: BaseException | None = None) -> None:
        """Writes the report.

        A failure to do so is passed over: it must not hide the error that is
        reported.

        Args:
            exit_code: what the process is about to end with.
            error: what ended it, if it was not its own will.
        """
        path = os.environ.get(VARIABLE)
        if not path:
            return
        with contextlib.suppress(Exception):
            record = {
                "pid": os.getpid(),
                "exit_code": exit_code,
                "error": None if error is None else headline(error),
                "step": None if self.trainer is None else self.trainer.step,
            }
            if isinstance(error, StartAgain):
                record["for_others"] = error.for_others
            with local_files.create(f"{path}.tmp") as file:
                file.write(json.dumps(record).encode())
            os.replace(f"{path}.tmp", path)


def headline(error: BaseException) -> str:
    """The kind of an exception and a line that says what is wrong.

    It is the same in every run that fails in the same way.
    """
    kind = type(error).__name__
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line not in ("", _RUNNING)] or [""]
    told = lines[-1] if lines[0] == _TRACED else lines[0]
    text = f"{kind}: {told.removeprefix(f'{kind}: ')}".removesuffix(": ")
    return _ADDRESS.sub("0x...", text)[:_MOST]


def read(path: str, *, pid: int) -> dict[str, Any]:
    """Reads a report.

    Args:
        path: the file; it need not be there.
        pid: the process that should have written it. What another one wrote,
            such as its child, does not count.

    Returns:
        The object in the file; empty without a valid one.
    """
    try:
        found = json.loads(local_files.read(path))
        _REPORT(found, "it")
    except (OSError, ValueError, RecursionError):
        return {}
    if found["pid"] != pid:
        return {}
    record: dict[str, Any] = found
    return record
