"""Imports TensorFlow quietly, or says what is missing."""

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator

from trainer.errors import UserError

# About when the process began: nothing of this package is imported before.
STARTED = time.monotonic()


def load_tensorflow() -> None:
    """Imports TensorFlow, and lets Keras use it.

    TensorFlow writes to stderr during its import, whatever the log level.
    This output is dropped unless the import fails, or `TF_CPP_MIN_LOG_LEVEL`
    is 0 or 1.

    Raises:
        UserError: TensorFlow is not installed, or Keras is set to another
            backend.
    """
    # Keras reads it only once, while it is imported.
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise UserError(
            f"KERAS_BACKEND={backend}: this trainer needs TensorFlow. "
            "Unset it or set KERAS_BACKEND=tensorflow."
        )
    if "tensorflow" in sys.modules:
        return
    # Not by catching ImportError: one from inside of TensorFlow, such as for a
    # missing library, keeps its traceback.
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            "TensorFlow is not installed. Use one of: "
            "pip install 'keras-trainer-plugins[cpu]', "
            "'keras-trainer-plugins[gpu]' or 'keras-trainer-plugins[tpu]'."
        )
    # 2 means errors only; 0 and 1 ask for information and warnings, too.
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    wanted = level in ("0", "1")
    quiet = contextlib.nullcontext() if wanted else _without_stderr()
    with without_collections(), quiet:
        importlib.import_module("tensorflow")


@contextlib.contextmanager
def without_collections(*, freeze: bool = False) -> Iterator[None]:
    """Pauses the garbage collector while modules are imported.

    It would look through all that has been imported, 1,000 times and for
    nothing: a second of the CPU time of TensorFlow's import, which is 3.5.

    Args:
        freeze: whether collections leave out what there is then, for as long
            as the process lives.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if freeze:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Drops output to file descriptor 2 unless the block fails."""
    # The messages come from C++, so redirecting `sys.stderr` is not enough.
    sys.stderr.flush()
    stderr = os.dup(2)
    # A file, because a pipe that is not read would soon be full and block.
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
            sys.stderr.flush()
            held.truncate(0)
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            sys.stderr.write(held.read().decode(errors="replace"))
