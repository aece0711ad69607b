"""Failures of the user's own code: a sentence, and only the user's frames."""

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trainer.errors import KERAS_ADDS

_OURS = ("trainer", "trainer_plugins")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
# A frame, with its source or not, in the message of an error that comes from a
# traced function, an operation or a data generator.
_LISTED = re.compile(
    r'^ *File "(.+?)", line (\d+), in (\S+).*(?:\n {4,}\S.*)?$', re.MULTILINE
)
# What calls the user's code, as file:function, and for what. The first that
# fits counts.
_PURPOSES = (
    ("strategy/build.py:build_model", "Trainer.model"),
    ("strategy/optimizers.py", "Trainer.optimizer"),
    ("step/metrics/", "a metric"),
    ("step/losses/", "a loss"),
    ("step/probe", "the probe before the first step"),
    ("step/", "a step"),
    ("loop/callback_list.py", "a callback"),
    ("data/", "Trainer.data"),
)


class _Frame(NamedTuple):
    path: str
    line: int
    function: str


def explain(error: BaseException) -> str | None:
    """Returns the report on an exception that the user's code has raised.

    Returns:
        A sentence that names the user's function, and a traceback of the
        user's frames; `None` if the user's code has no part in it.
    """
    frames = _frames(error)
    own = _users(frames)
    if not own:
        return None
    first, last = own[0], own[-1]
    module = f"your module {os.path.basename(first.path)}"
    importing = _importing(error)
    if first.function == "<module>" and importing:
        what = f"{module}, imported by {importing},"
    else:
        purpose = _purpose(frames[: frames.index(first)])
        what = f"your function {first.function}, called for {purpose},"
    where = f"{last.path}, line {last.line}"
    if isinstance(error, SystemExit):
        return (
            f"error: {what} calls sys.exit({error.code!r}) ({where}). Let it "
            "return or raise an exception: a run does not end like that.\n"
        )
    lines = [f"error: {what} failed with {type(error).__name__} ({where}).\n"]
    for one in _chain(error):
        if stack := _users(_frames(one)):
            lines.append("Traceback (your code only; --verbosity=1: all):\n")
            lines += _format(one, stack)
    return "".join(lines)


def _format(error: BaseException, stack: Sequence[_Frame]) -> list[str]:
    # Not at the top, because this imports gin.
    from trainer.cli.config.names import plain

    if isinstance(error, SyntaxError):
        # It shows its own place.
        shown = traceback.format_exception_only(error)
        return [*_format_frames(stack[:-1]), *shown]
    kind, message = type(error).__name__, plain(error)
    if inner := KERAS_ADDS.search(message):
        message = inner[1]
    elif listed := list(_LISTED.finditer(message)):
        # What is behind the frames; TensorFlow's name of the node is no help.
        rest = message[listed[-1].end() :].splitlines()
        kept = [line.strip() for line in rest if "[[{{node" not in line]
        message = "\n".join(filter(None, kept))
    text = f"{kind}: {message.removeprefix(f'{kind}: ')}".removesuffix(": ")
    notes = getattr(error, "__notes__", ())
    return [*_format_frames(stack), "\n".join([text, *notes]) + "\n"]


def _format_frames(stack: Sequence[_Frame]) -> list[str]:
    return traceback.format_list([traceback.FrameSummary(*f) for f in stack])


def _importing(error: BaseException) -> str | None:
    """Returns the line of a gin file that imports what has failed."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "trainer.cli.config.reader":
            place = frame.f_locals.get("where")
            if frame.f_code.co_name == "_import" and isinstance(place, str):
                return place
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception after those that it was raised from."""
    hidden = error.__suppress_context__
    before = error.__cause__ or (None if hidden else error.__context__)
    # A traced function's error is raised once more, with more in its message.
    if before is not None and str(before) not in str(error):
        yield from _chain(before)
    yield error


def _frames(error: BaseException) -> list[_Frame]:
    """Returns the frames below `python -m trainer`; those listed come last."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = _inner([_Frame(f.filename, f.lineno or 0, f.name) for f in stack])
    listed = _LISTED.findall(str(error))
    more = _inner(
        [_Frame(path, int(line), name) for path, line, name in listed]
    )
    frames += [frame for frame in more if frame not in frames]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(_Frame(error.filename, error.lineno or 0, "<module>"))
    return frames


def _inner(frames: Sequence[_Frame]) -> list[_Frame]:
    """Leaves out what is above the first frame of ours, if there is one."""
    ours = [number for number, f in enumerate(frames) if _is_ours(f.path)]
    return list(frames[ours[0] if ours else 0 :])


def _users(frames: Sequence[_Frame]) -> list[_Frame]:
    """Returns the frames of the user's files."""
    return [frame for frame in frames if _is_users(frame.path)]


def _purpose(callers: Sequence[_Frame]) -> str:
    """Returns what the user's code was called for."""
    for frame in reversed(callers):
        place = f"{frame.path.replace(os.sep, '/')}:{frame.function}"
        for part, purpose in _PURPOSES:
            if f"/trainer/{part}" in place:
                return purpose
    return "the run"


def _is_ours(path: str) -> bool:
    """Whether a file is of this project."""
    return any(
        path.startswith(f"{os.path.dirname(home)}{os.sep}")
        for name in _OURS
        if (home := getattr(sys.modules.get(name), "__file__", None))
    )


def _is_users(path: str) -> bool:
    """Whether a file is neither of this project nor of a library."""
    return (
        not path.startswith("<")
        and not _is_ours(path)
        and not path.startswith(sysconfig.get_paths()["stdlib"])
        and not _INSTALLED.search(path)
        and "__autograph_generated_file" not in path
    )
