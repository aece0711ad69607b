"""How a process ends where Python's own way does not do."""

import atexit
import contextlib
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from trainer.errors import EXIT_START_AGAIN

# Last words may have to be written to the file system that hangs.
_LAST_WORDS_SECONDS = 5.0
_last_words: Callable[[str], object] = str
_ending = threading.Lock()
_skips_teardown = threading.Event()


def skip_teardown() -> None:
    """Says that this process has threads which nothing can stop.

    Such as those of TensorFlow's servers. Now and then they crash in what is
    taken down around them, and a run that has ended well ends with SIGSEGV.
    `end_process` then takes nothing down.
    """
    _skips_teardown.set()


def end_process(code: int, *, at_once: bool = False) -> NoReturn:
    """Ends the process; for the last line of a program.

    Args:
        code: the exit code.
        at_once: leaves out threads that are at work, and exit handlers.
    """
    if not (at_once or _skips_teardown.is_set()):
        sys.exit(code)
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


def give_up(reason: str) -> None:
    """Ends the process with `EXIT_START_AGAIN`, and all stacks on stderr.

    For where an operation waits inside TensorFlow or the kernel: nothing can
    interrupt it. To be called from a thread that does not wait.
    """
    # Whoever comes second waits here for the first one's end.
    _ending.acquire()
    try:
        # Whoever read stderr may be gone, or there may be none.
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback(all_threads=True)
        with contextlib.suppress(Exception):
            sys.stderr.write(f"start again: {reason}\n")
            sys.stderr.flush()
        speaker = threading.Thread(
            target=_last_words, args=(reason,), daemon=True
        )
        speaker.start()
        speaker.join(_LAST_WORDS_SECONDS)
    finally:
        # Not `sys.exit`: it would raise in this thread, and then wait for those
        # that hang.
        os._exit(EXIT_START_AGAIN)


@contextlib.contextmanager
def last_words(speak: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the reason if the process gives up meanwhile.

    Args:
        speak: must not wait for the main thread; gets a few seconds.
    """
    global _last_words
    _last_words = speak
    try:
        yield
    finally:
        _last_words = str
