"""The command of a run, and the name and folder that it has by default.

Nothing here imports TensorFlow.
"""

import os
import shlex
import sys
import time
from collections.abc import Sequence

START = ["python", "-m", "trainer"]


def recorded(arguments: Sequence[str], *, module: str = START[-1]) -> str:
    """The command with these arguments, to be pasted into a shell."""
    return shlex.join([*START[:-1], module, *arguments])


def started(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with these arguments, for a process of this Python."""
    return (sys.executable, *START[1:], *arguments)


def experiment_name(gin_files: Sequence[str]) -> str:
    """Returns the name of the first gin file, without its suffix."""
    return os.path.splitext(os.path.basename(gin_files[0]))[0]


def default_path(experiment: str) -> str:
    """Returns a new path `runs/<experiment>/<YYYYmmdd-HHMMSS>`, local time."""
    path = os.path.join("runs", experiment, time.strftime("%Y%m%d-%H%M%S"))
    # Two runs may start within the same second.
    unique, count = path, 1
    while os.path.exists(unique):
        count += 1
        unique = f"{path}-{count}"
    return unique
