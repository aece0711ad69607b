"""The command of a run: as it is recorded, and as it is started.

Nothing here imports TensorFlow.
"""

import shlex
import sys
from collections.abc import Sequence

START = ["python", "-m", "trainer"]


def recorded(arguments: Sequence[str]) -> str:
    """The command with these arguments, to be pasted into a shell."""
    return shlex.join([*START, *arguments])


def started(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command with these arguments, for a process of this Python."""
    return (sys.executable, *START[1:], *arguments)
