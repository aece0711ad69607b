"""How a process ends, and what it says of its end.

The exit code alone does not tell whether two failures are the same. A
supervisor names a file in `TRAINER_EXIT_REPORT`, and the process writes its
report there at the end:

    {"pid": 4711, "exit_code": 1, "error": "ValueError: no", "step": 40}

The file is there from the first step on, with an `exit_code` of `null`: from
then on the process may have something to save. Nothing here imports TensorFlow.
"""

import atexit
import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from trainer.errors import EXIT_FAILED, EXIT_START_AGAIN, KERAS_ADDS
from trainer.runtime import files
from trainer.runtime.standard_streams import say

REPORT = "TRAINER_EXIT_REPORT"
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
# Last words may have to be written to the file system that hangs.
_LAST_WORDS_SECONDS = 5.0
_ending = threading.Lock()


def _without_words(reason: str, hangs: bool) -> bool:
    return False


_last_words: Callable[[str, bool], bool] = _without_words


def end_process(code: int, *, at_once: bool = False) -> NoReturn:
    """Ends the process; for the last line of a program.

    It takes nothing down. TensorFlow has threads which nothing can stop: those
    of its servers now and then crash in what is taken down around them, and
    iterators of tf.data wait for those that tune them.

    Args:
        code: the exit code.
        at_once: leaves out threads that are at work, and exit handlers.
    """
    if not at_once:
        # What the interpreter does before it takes anything down.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    # `os._exit` flushes nothing.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    logging.shutdown()
    os._exit(code)


def give_up(reason: str, *, hangs: bool = False) -> None:
    """Ends the process with `EXIT_START_AGAIN`, and all stacks on stderr.

    For where an operation waits inside TensorFlow or the kernel: nothing can
    interrupt it. To be called from a thread that does not wait.

    Args:
        reason: a clause.
        hangs: whether it was not asked to leave. If an attempt before has hung
            at the same step for the same reason, the exit code is 1.
    """
    again: list[bool] = []
    # Whoever comes second waits here for the first one's end.
    _ending.acquire()
    try:
        # Whoever read stderr may be gone, or there may be none.
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback(all_threads=True)
        with contextlib.suppress(Exception):
            say(f"start again: {reason}")
        speaker = threading.Thread(
            target=lambda: again.append(_last_words(reason, hangs)), daemon=True
        )
        speaker.start()
        speaker.join(_LAST_WORDS_SECONDS)
        if any(again):
            with contextlib.suppress(Exception):
                say(
                    "error: the same failure happened at the same step as "
                    "before: a bug."
                )
    finally:
        # Not `sys.exit`: it would raise in this thread, and then wait for those
        # that hang.
        os._exit(EXIT_FAILED if any(again) else EXIT_START_AGAIN)


@contextlib.contextmanager
def last_words(speak: Callable[[str, bool], bool]) -> Iterator[None]:
    """Calls a function if the process gives up meanwhile.

    Args:
        speak: gets the arguments of `give_up`, and returns whether this has
            happened before. It must not wait for the main thread, and has a few
            seconds.
    """
    global _last_words
    before, _last_words = _last_words, speak
    try:
        yield
    finally:
        _last_words = before


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
        path = os.environ.get(REPORT)
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


def read_report(path: str, *, pid: int) -> dict[str, Any]:
    """Reads a report.

    Args:
        path: the file; it need not exist.
        pid: the process that should have written it. A report of another
            process, such as its child, does not count.

    Returns:
        The report; empty if there is no valid one.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        found = files.read_record(path)
    return found if found.get("pid") == pid else {}
