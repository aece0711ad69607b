"""Standard output and error that never fail.

A terminal that is closed, a pipe whose reader has left (`| head -1`) or a full
disk is no reason to lose a run: output that cannot be written is dropped.
Text that may come from other people's files, such as their names, is printed
without control characters. Nothing here imports TensorFlow.
"""

import errno
import io
import logging
import os
import select
import sys
from typing import Any, TextIO

from trainer.errors import UserError


class _Lasting(io.FileIO):
    """Writes to a file descriptor, or nowhere once that has failed.

    Attributes:
        failure: the first error, if there was one.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes bytes; see `io.RawIOBase`."""
        try:
            while (count := super().write(data)) is None:
                # It was made non-blocking, and its reader is slow.
                select.select([], [self.fileno()], [])
            return count
        except OSError as error:
            self.failure = self.failure or error
            # So that nothing else fails that writes to this descriptor, such
            # as TensorFlow or a child process.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if self.fileno() == 1 and error.errno != errno.EPIPE:
                sys.stderr.write(
                    "warning: standard output cannot be written "
                    f"({error.strerror}). Further output is lost.\n"
                )
            return memoryview(data).nbytes


def protect() -> None:
    """Lets the standard streams of this process outlive what they lead to.

    Call it before anything else is opened: a closed descriptor would be given
    to the next file, and what is printed would end up there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        # The caller's own, as in `contextlib.redirect_stderr`.
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _lasting(number, stream))


def printable(text: str) -> str:
    """A text without what controls a terminal; lines stay lines."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def say(text: str) -> None:
    """Prints a line to stderr, of whatever text."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def say_now(doing: str) -> None:
    """Says on a terminal what takes a while and has begun."""
    if sys.stderr.isatty():
        say(f"{doing} ...")


class Saying(logging.Handler):
    """Prints what is logged for a person: without its time and source."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        say(f"{record.levelname.lower()}: {self.format(record)}")


def clean(record: logging.LogRecord) -> bool:
    """A filter of loggers: keeps each message, but prints it as `say` does."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def require_output() -> None:
    """Makes sure that what was printed has arrived.

    A pipe whose reader has left is fine: it has read what it wanted.

    Raises:
        UserError: standard output cannot be written.
    """
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    failure = getattr(raw, "failure", None)
    if failure is not None and failure.errno != errno.EPIPE:
        raise UserError(
            f"Standard output cannot be written: {failure.strerror}."
        )


def _lasting(number: int, before: Any) -> TextIO:
    """Returns a stream like the one before, if there was one."""
    raw = _Lasting(number, "w", closefd=False)
    unbuffered = getattr(before, "write_through", False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=getattr(before, "encoding", "utf-8"),
        errors=getattr(before, "errors", "backslashreplace"),
        line_buffering=getattr(before, "line_buffering", True),
        write_through=unbuffered,
    )
