"""Files and directories that are there whole, or as they were."""

import contextlib
import json
import os
import socket
import uuid
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.runtime import local_files
from trainer.runtime.local_files import (
    is_file,
    is_local,
    refuse_link,
    refuse_links,
)

__all__ = [
    "REFUSALS",
    "append",
    "exists",
    "keep_copy",
    "make_directory",
    "prepare_directory",
    "prepare_file",
    "read",
    "read_json",
    "refuse_link",
    "refuse_links",
    "remove",
    "remove_if_possible",
    "set_aside",
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
        if is_local(path) and os.path.isdir(path):
            local_files.set_aside(path, "it is a directory")
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


def read(path: str) -> bytes:
    """Reads a file whole, and never waits for what is no file.

    Raises:
        OSError, tf.errors.OpError: it cannot be read.
    """
    if is_local(path):
        return local_files.read(path)
    with tf.io.gfile.GFile(path, "rb") as file:
        content: bytes = file.read()
    return content


def read_json(path: str) -> Any:
    """Reads a JSON file.

    Raises:
        ValueError: it holds no JSON, or is local and cannot be read.
        tf.errors.OpError: it is not local, and cannot be read now.
    """
    try:
        return json.loads(read(path))
    except OSError as error:
        raise ValueError(f"it cannot be read: {error}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def set_aside(path: str, why: str) -> None:
    """Gives what cannot be used another name, with a warning.

    Args:
        path: local, or what `tf.io.gfile` knows; something is there.
        why: what is wrong with it.

    Raises:
        UserError: the file system refused.
    """
    other = _aside(path)
    try:
        tf.io.gfile.rename(path, other)
    except REFUSALS as error:
        raise UserError(
            f"{path} cannot be used ({why}), nor renamed: {error}"
        ) from None
    logging.warning("%s cannot be used: %s. It is %s now.", path, why, other)


def keep_copy(path: str, content: bytes, why: str) -> None:
    """Keeps what stood in a file of which only a part can be used.

    Raises:
        OSError, tf.errors.OpError: the file system refused.
    """
    other = _aside(path)
    write_whole(other, content)
    logging.warning("%s is damaged: %s. A copy is %s.", path, why, other)


def _aside(path: str) -> str:
    if is_local(path):
        return local_files.aside(path)
    return f"{path}.damaged-{uuid.uuid4().hex[:8]}"


def prepare_file(directory: str, name: str) -> None:
    """Makes sure that nothing stands where a run adds to a file.

    Args:
        directory: the run directory.
        name: the file.

    Raises:
        UserError: a link is there, or what is there cannot be set aside.
    """
    refuse_links(directory, name)
    path = os.path.join(directory, name)
    if is_local(path) and os.path.exists(path) and not is_file(path):
        set_aside(path, "it is no regular file")


def prepare_directory(directory: str, name: str) -> None:
    """Makes sure that nothing stands where a run makes a directory.

    Args:
        directory: the run directory.
        name: the directory below it, such as `"tensorboard/train"`.

    Raises:
        UserError: a link is there, or what is there cannot be set aside.
    """
    refuse_links(directory, name)
    path = directory
    for part in name.split("/"):
        path = os.path.join(path, part)
        if is_local(path) and os.path.exists(path) and not os.path.isdir(path):
            set_aside(path, "it is no directory")


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
