"""Files and directories that are there whole, or as they were."""

import contextlib
import os
import socket

import tensorflow as tf

from trainer import local_files
from trainer.local_files import is_local, refuse_link, refuse_links

__all__ = [
    "REFUSALS",
    "append",
    "exists",
    "make_directory",
    "refuse_link",
    "refuse_links",
    "remove",
    "remove_if_possible",
    "synchronize",
    "write_whole",
]

# What a file system's refusal is raised as: by Python, and by TensorFlow.
REFUSALS = (OSError, tf.errors.OpError)


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file beside its place and renames it there.

    Args:
        path: local, or what `tf.io.gfile` knows; its directory exists.
        content: all of the file.

    Raises:
        OSError, tf.errors.OpError: the file system refused; the file is as
            it was.
    """
    # Two processes that write one file must not share what lies beside it.
    beside = f"{path}.{socket.gethostname()}-{os.getpid()}.tmp"
    try:
        if is_local(path):
            with local_files.create(beside) as file:
                file.write(_bytes(content))
        else:
            with tf.io.gfile.GFile(beside, "wb") as file:
                file.write(content)
        synchronize(beside)
        tf.io.gfile.rename(beside, path, overwrite=True)
        synchronize(os.path.dirname(path) or ".")
    except BaseException:
        remove_if_possible(beside)
        raise


def make_directory(path: str) -> None:
    """Makes a directory, and its parents, so that a power cut keeps them.

    Args:
        path: local, or what `tf.io.gfile` knows; it may exist.
    """
    missing = []
    while path and not tf.io.gfile.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing:
        tf.io.gfile.makedirs(missing[0])
    for made in reversed(missing):
        synchronize(os.path.dirname(made) or ".")


def synchronize(path: str) -> None:
    """Flushes a local file or directory to disk; elsewhere does nothing."""
    if not os.path.exists(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: str, text: str) -> None:
    """Adds to the end of a file of the run's own.

    Args:
        path: local, or what `tf.io.gfile` knows; its directory exists.
        text: what to add.

    Raises:
        OSError, tf.errors.OpError: the file system refused, or the path is a
            link.
    """
    if is_local(path):
        with local_files.open_to_append(path) as local:
            local.write(_bytes(text))
        return
    with tf.io.gfile.GFile(path, "a") as remote:
        remote.write(text)


def exists(path: str) -> bool:
    """Whether anything has this name, be it a link that leads nowhere."""
    if is_local(path):
        return os.path.lexists(path)
    return bool(tf.io.gfile.exists(path))


def remove(path: str) -> None:
    """Removes a file, a link or a whole directory; it need not be there.

    `tf.io.gfile.rmtree` would empty what a link leads to.
    """
    if is_local(path):
        local_files.remove(path)
    elif tf.io.gfile.isdir(path):
        tf.io.gfile.rmtree(path)
    elif tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def remove_if_possible(path: str) -> None:
    """Deletes a file or a directory, to tidy up after an error.

    The error is what the user must see, not that this failed as well.
    """
    with contextlib.suppress(*REFUSALS):
        remove(path)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
