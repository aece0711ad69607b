"""Files and directories that are there whole, or as they were."""

import os
import socket

import tensorflow as tf

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
    mode = "w" if isinstance(content, str) else "wb"
    try:
        with tf.io.gfile.GFile(beside, mode) as file:
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


def remove_if_possible(path: str) -> None:
    """Deletes a file or a directory, to tidy up after an error.

    The error is what the user must see, not that this failed as well.
    """
    try:
        if tf.io.gfile.isdir(path):
            tf.io.gfile.rmtree(path)
        elif tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)
    except tf.errors.OpError:
        pass
