"""A folder that stands for the run directory while a run is tried."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from trainer.checkpoint import storage
from trainer.errors import UserError
from trainer.loop import rollback
from trainer.runtime import files
from trainer.runtime.files import is_local


@contextlib.contextmanager
def scratch_directory(model_dir: str) -> Iterator[str]:
    """Makes a folder that a run would start from as from its own.

    Args:
        model_dir: the run directory, which is only read; it need not exist.

    Yields:
        The folder's path; it is removed at the end. In the message of a
        `UserError` that leaves the context, it is the run directory's.
    """
    with tempfile.TemporaryDirectory(prefix="trainer-check-") as folder:
        # What a run reads at its start, beside its checkpoints.
        path = os.path.join(model_dir, rollback.FILE_NAME)
        if files.exists(path):
            copy = os.path.join(folder, rollback.FILE_NAME)
            files.write_whole(copy, files.read(path))
        checkpoints = os.path.join(folder, "checkpoints")
        found = storage.listing(os.path.join(model_dir, "checkpoints"))
        for path in reversed(found):
            os.makedirs(checkpoints, exist_ok=True)
            copy = os.path.join(checkpoints, os.path.basename(path))
            if is_local(path):
                # A run reads a checkpoint that is a link as any other, and
                # where it removes one, it removes the link alone.
                os.symlink(os.path.abspath(path), copy)
            elif _is_copied(path, copy):
                break
        try:
            yield folder
        except UserError as error:
            error.args = tuple(
                part.replace(folder, model_dir) if type(part) is str else part
                for part in error.args
            )
            raise


def _is_copied(path: str, copy: str) -> bool:
    """Copies a remote checkpoint; returns whether the copy is usable."""
    for folder, _, names in tf.io.gfile.walk(path):
        inside = os.path.join(copy, os.path.relpath(folder, path))
        os.makedirs(inside, exist_ok=True)
        for name in names:
            # The run may go on meanwhile, and delete old ones.
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.copy(
                    os.path.join(folder, name), os.path.join(inside, name)
                )
    return storage.find_fault(copy) is None
