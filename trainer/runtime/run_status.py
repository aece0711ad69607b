"""Whether a run has ended well, for an evaluator or a launcher.

Nothing here imports TensorFlow where the run directory is local.
"""

import os
import time
from typing import Any

from trainer.runtime import files

# By then a training process that starts together with the evaluator, and first
# imports TensorFlow and builds its graphs, has replaced an older run.json.
_START_SECONDS = 60.0


class RunIsOver:
    """Reads `run.json`, which the training process writes.

    A record from before this process counts only after a delay, because the
    run may be about to continue with more steps.

    Args:
        path: the run directory; it need not exist yet.
        start_seconds: the delay.
    """

    def __init__(
        self, path: str, *, start_seconds: float = _START_SECONDS
    ) -> None:
        self._path = os.path.join(path, "run.json")
        self._trust_after = time.monotonic() + start_seconds
        # Compared as a whole, since a later attempt differs at least in
        # `start`.
        self._first = self._read()

    def __call__(self) -> bool:
        """Whether the run has ended well and is not about to continue."""
        record = self._read()
        if record.get("exit_reason") != "done":
            return False
        return record != self._first or time.monotonic() >= self._trust_after

    def _read(self) -> dict[str, Any]:
        """Returns the record; empty if it cannot be read at the moment."""
        try:
            found = files.read_json(self._path)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
