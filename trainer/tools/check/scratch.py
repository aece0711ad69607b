"""A folder that stands for the run directory while a run is tried."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from trainer.checkpoint import storage
from trainer.errors import UserError
from trainer.loop import rollback
from trainer.runtime import files, run_paths
from trainer.runtime.files import is_local
from trainer.runtime.run_paths import plain

# What a run reads at its start, beside its checkpoints.
_READ = (rollback.FILE_NAME,)
_CHECKPOINTS = "checkpoints"


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
        _take_links(plain(model_dir), folder)
        for name in _READ:
            path = os.path.join(model_dir, name)
            if files.exists(path):
                run_paths.refuse_links(model_dir, name)
                files.write_whole(os.path.join(folder, name), files.read(path))
        checkpoints = os.path.join(folder, _CHECKPOINTS)
        found = storage.listing(os.path.join(model_dir, _CHECKPOINTS))
        for path in [] if os.path.islink(checkpoints) else reversed(found):
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


def _take_links(model_dir: str, folder: str) -> None:
    """Puts links where the run directory has some, so that they are refused."""
    if not is_local(model_dir):
        return
    for place, folders, names in os.walk(model_dir):
        inside = os.path.join(folder, os.path.relpath(place, model_dir))
        for name in (*folders, *names):
            path = os.path.join(place, name)
            if os.path.islink(path):
                os.makedirs(inside, exist_ok=True)
                target = os.path.join(os.path.abspath(place), os.readlink(path))
                os.symlink(target, os.path.join(inside, name))
        # Its own may be links.
        if place == model_dir and _CHECKPOINTS in folders:
            folders.remove(_CHECKPOINTS)


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
