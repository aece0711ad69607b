"""Whether a run has ended well, for who looks on: evaluator, launcher.

Nothing here imports TensorFlow where the run directory is local.
"""

import json
import os
import time
from typing import Any

from trainer.runtime.local_files import is_local, read

# A training process that starts together with the evaluator has replaced an
# older run.json by then: it imports TensorFlow and builds its graphs first.
_START_SECONDS = 60.0


class RunIsOver:
    """Reads `run.json`, which the training process writes.

    An end from before this process is believed only after a while: the run
    may be about to go on with more steps.

    Args:
        path: the run directory; it need not exist yet.
        start_seconds: how long that while is.
    """

    def __init__(
        self, path: str, *, start_seconds: float = _START_SECONDS
    ) -> None:
        self._path = os.path.join(path, "run.json")
        self._believe_at = time.monotonic() + start_seconds
        self._first = self._read()

    def __call__(self) -> bool:
        """Whether the run has ended well, and is not about to go on."""
        record = self._read()
        if record.get("exit_reason") != "done":
            return False
        return record != self._first or time.monotonic() >= self._believe_at

    def _read(self) -> dict[str, Any]:
        """The record; empty if it is not there or cannot be read now."""
        try:
            found = json.loads(_text(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _text(path: str) -> bytes:
    """A file's content; `OSError` where it cannot be had."""
    if is_local(path):
        return read(path)
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read())
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
