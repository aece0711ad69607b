"""A folder that stands for the run directory while a run is tried."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from trainer.checkpoint import storage
from trainer.loop import form_choice, rollback
from trainer.runtime import atomic_files
from trainer.runtime.local_files import is_local

# What a run reads at its start, beside its checkpoints.
_READ = (form_choice.RECORD, rollback.FILE_NAME)


@contextlib.contextmanager
def scratch_directory(model_dir: str) -> Iterator[str]:
    """Makes a folder that a run would start from as from its own.

    Args:
        model_dir: the run directory, which is only read; it need not exist.

    Yields:
        The folder's path; it is removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="trainer-check-") as folder:
        for name in _READ:
            path = os.path.join(model_dir, name)
            if atomic_files.exists(path):
                atomic_files.refuse_links(model_dir, name)
                atomic_files.write_whole(
                    os.path.join(folder, name), atomic_files.read(path)
                )
        checkpoints = os.path.join(folder, "checkpoints")
        found = storage.listing(os.path.join(model_dir, "checkpoints"))
        for path in found:
            os.makedirs(checkpoints, exist_ok=True)
            _take(path, os.path.join(checkpoints, os.path.basename(path)))
        yield folder


def _take(path: str, copy: str) -> None:
    """Makes a checkpoint readable in another place."""
    if is_local(path):
        # A run reads a checkpoint that is a link as any other, and where it
        # removes one, it removes the link alone.
        os.symlink(os.path.abspath(path), copy)
        return
    for folder, _, names in tf.io.gfile.walk(path):
        inside = os.path.join(copy, os.path.relpath(folder, path))
        os.makedirs(inside, exist_ok=True)
        for name in names:
            tf.io.gfile.copy(
                os.path.join(folder, name), os.path.join(inside, name)
            )
