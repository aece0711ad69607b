"""The default name and directory of a run.

Nothing here imports TensorFlow.
"""

import os
import time
from collections.abc import Sequence


def experiment_name(gin_files: Sequence[str]) -> str:
    """Returns the name of the first gin file, without its suffix."""
    return os.path.splitext(os.path.basename(gin_files[0]))[0]


def default_path(experiment: str) -> str:
    """Returns a new path `runs/<experiment>/<YYYYmmdd-HHMMSS>`, local time."""
    path = os.path.join("runs", experiment, time.strftime("%Y%m%d-%H%M%S"))
    # Two runs may start within the same second.
    unique, count = path, 1
    while os.path.exists(unique):
        count += 1
        unique = f"{path}-{count}"
    return unique
