"""Small files that are there whole, or as they were."""

import os
import socket

import tensorflow as tf


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file beside its place and renames it there.

    Args:
        path: local, or what `tf.io.gfile` knows; its directory exists.
        content: all of the file.
    """
    # Two processes that write one file must not share what lies beside it.
    beside = f"{path}.{socket.gethostname()}-{os.getpid()}.tmp"
    with tf.io.gfile.GFile(
        beside, "w" if isinstance(content, str) else "wb"
    ) as file:
        file.write(content)
    tf.io.gfile.rename(beside, path, overwrite=True)
