"""How a run ends: its exit code, the reason in `run.json`, what is printed."""

import sys
import traceback
from typing import NamedTuple

from absl import logging

from trainer.cli.user_code import explain
from trainer.errors import (
    EXIT_FAILED,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    Diverged,
    StartAgain,
    UserError,
)

EXIT_INTERRUPTED = 130  # As a shell reports a process that Ctrl-C has ended.


class Ending(NamedTuple):
    """What an exception means for the run that it ends.

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

        sys.stderr.write(f"{prefix}{plain(error)}\n")
