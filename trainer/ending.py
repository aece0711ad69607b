"""Ends a process that nothing else can end, and says why."""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator

from trainer.errors import EXIT_START_AGAIN

# Last words may have to be written to the file system that hangs.
_LAST_WORDS_SECONDS = 5.0
_last_words: list[Callable[[str], None]] = []
_ending = threading.Lock()


def give_up(reason: str) -> None:
    """Ends the process with `EXIT_START_AGAIN`, and all stacks on stderr.

    For where an operation waits inside TensorFlow or the kernel: nothing can
    interrupt it. To be called from a thread that does not wait.

    Args:
        reason: what is told on stderr and to those of `last_words`.
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
        speaker = threading.Thread(target=_speak, args=(reason,), daemon=True)
        speaker.start()
        speaker.join(_LAST_WORDS_SECONDS)
    finally:
        os._exit(EXIT_START_AGAIN)


@contextlib.contextmanager
def last_words(speak: Callable[[str], None]) -> Iterator[None]:
    """Calls a function with the reason if the process gives up meanwhile.

    Args:
        speak: must not wait for the main thread; gets a few seconds.
    """
    _last_words.append(speak)
    try:
        yield
    finally:
        _last_words.remove(speak)


def _speak(reason: str) -> None:
    for speak in list(_last_words):
        with contextlib.suppress(Exception):
            speak(reason)
