"""Which frames of a traceback are of the user's own code."""

import os
import re
import sys
import sysconfig
from types import TracebackType

_OURS = ("trainer", "trainer_plugins")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
# Where code has been typed, and not read from a file.
_TYPED = ("<stdin>", "<ipython-", "<python-input-")


def is_ours(path: str) -> bool:
    """Whether a file is of this project."""
    return any(
        path.startswith(f"{os.path.dirname(home)}{os.sep}")
        for name in _OURS
        if (home := getattr(sys.modules.get(name), "__file__", None))
    )


def is_users(path: str) -> bool:
    """Whether a file is neither of this project nor of a library."""
    if path.startswith("<"):
        return path.startswith(_TYPED)
    return (
        not is_ours(path)
        and not path.startswith(sysconfig.get_paths()["stdlib"])
        and not _INSTALLED.search(path)
        and "__autograph_generated_file" not in path
    )


def only_users(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of libraries and of this project."""
    kept: TracebackType | None = None
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for one in reversed(frames):
        if is_users(one.tb_frame.f_code.co_filename):
            kept = TracebackType(
                kept, one.tb_frame, one.tb_lasti, one.tb_lineno
            )
    return kept
