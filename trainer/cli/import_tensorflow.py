"""Imports TensorFlow, or says what is missing."""

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator

from trainer.errors import UserError


def load_tensorflow() -> None:
    """Makes `import tensorflow` and `import keras` work, and quiet.

    TensorFlow writes to stderr while it is imported, whatever its log level.
    That is held back unless the import fails, or `TF_CPP_MIN_LOG_LEVEL` is
    0 or 1 because somebody wants to read it.

    Raises:
        UserError: TensorFlow is not installed, or Keras is told to use
            another backend.
    """
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise UserError(
            f"KERAS_BACKEND={backend}: this trainer runs on tf.distribute. "
            "Unset it or set KERAS_BACKEND=tensorflow."
        )
    if "tensorflow" in sys.modules:
        return
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            "TensorFlow is not installed. Take one of: "
            "pip install 'keras-trainer-plugins[cpu]', "
            "'keras-trainer-plugins[gpu]' or 'keras-trainer-plugins[tpu]'."
        )
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    wanted = level in ("0", "1")
    with contextlib.nullcontext() if wanted else _stderr_held_back():
        importlib.import_module("tensorflow")


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Drops what is written to file descriptor 2, unless the block fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            if failed:
                held.seek(0)
                sys.stderr.write(held.read().decode(errors="replace"))
