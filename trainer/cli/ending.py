"""How a run ends: its exit code, the reason in `run.json`, what is printed.

For a failure in the user's own code: an error message and the user's frames.
"""

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from traceback import FrameSummary
from typing import NamedTuple

from absl import logging

from trainer.errors import (
    EXIT_FAILED,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    KERAS_ADDS,
    Diverged,
    StartAgain,
    UserError,
)
from trainer.runtime.standard_streams import say

EXIT_INTERRUPTED = 130  # As a shell reports a process that Ctrl-C has ended.
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


class Ending(NamedTuple):
    """The meaning of an exception for the run that it ends.

    Attributes:
        exit_code: of the process.
        reason: the `exit_reason` of `run.json`.
        prefix: of the message on stderr; `None` prints the traceback.
    """

    exit_code: int
    reason: str
    prefix: str | None


_ENDINGS: dict[type[BaseException], Ending] = {
    UserError: Ending(EXIT_USER_ERROR, "user_error", "error: "),
    StartAgain: Ending(EXIT_START_AGAIN, "start_again", "start again: "),
    Diverged: Ending(EXIT_FAILED, "diverged", "error: "),
    KeyboardInterrupt: Ending(EXIT_INTERRUPTED, "interrupted", "interrupted"),
}


def ending_of(error: BaseException) -> Ending:
    """Returns what an exception means for the run that it ends."""
    for kind, ending in _ENDINGS.items():
        if isinstance(error, kind):
            return ending
    return Ending(EXIT_FAILED, "error", None)


def show(error: BaseException) -> None:
    """Prints to stderr what ended the run."""
    prefix = ending_of(error).prefix
    if prefix is None:
        report = (
            None if logging.get_verbosity() >= logging.DEBUG else explain(error)
        )
        sys.stderr.write(report or "".join(traceback.format_exception(error)))
    else:
        # Not at the top, because this imports gin and TensorFlow.
        from trainer.cli.config.names import plain

        said = getattr(error, "__notes__", [])
        # Whoever has pressed Ctrl-C knows why it ends.
        if not (said and str(error).startswith("SIGINT")):
            say(f"{prefix}{plain(error)}")
        for line in said:
            say(line)


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
    module = f"your module {os.path.basename(first.filename)}"
    importing = _importing(error)
    if first.name == "<module>" and importing:
        what = f"{module}, imported by {importing},"
    else:
        purpose = _purpose(frames[: frames.index(first)])
        what = f"your function {first.name}, called for {purpose},"
    where = f"{last.filename}, line {last.lineno}"
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


def _format(error: BaseException, stack: list[FrameSummary]) -> list[str]:
    # Not at the top, because this imports gin.
    from trainer.cli.config.names import plain

    if isinstance(error, SyntaxError):
        # It shows its own place.
        shown = traceback.format_exception_only(error)
        return [*traceback.format_list(stack[:-1]), *shown]
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
    said = "\n".join([text, *notes]) + "\n"
    return [*traceback.format_list(stack), said]


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


def _frames(error: BaseException) -> list[FrameSummary]:
    """Returns the frames below `main`; those listed in the message are last."""
    # Without the columns, which would be shown as lines of carets.
    frames = [
        FrameSummary(one.filename, one.lineno, one.name)
        for one in traceback.extract_tb(error.__traceback__)
    ]
    listed = [
        FrameSummary(path, int(line), name)
        for path, line, name in _LISTED.findall(str(error))
    ]
    # TensorFlow lists what is above `main`, too.
    ours = [n for n, one in enumerate(listed) if _is_ours(one.filename)]
    listed = listed[ours[0] if ours else 0 :]
    frames += [one for one in listed if one not in frames]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(
            FrameSummary(error.filename, error.lineno or 0, "<module>")
        )
    return frames


def _users(frames: list[FrameSummary]) -> list[FrameSummary]:
    """Returns the frames of the user's files."""
    return [frame for frame in frames if _is_users(frame.filename)]


def _purpose(callers: Sequence[FrameSummary]) -> str:
    """Returns what the user's code was called for."""
    for frame in reversed(callers):
        place = f"{frame.filename.replace(os.sep, '/')}:{frame.name}"
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
