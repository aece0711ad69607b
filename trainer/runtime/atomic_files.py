"""Atomic writes: files and directories are complete, or as before."""

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
from trainer.runtime.local_files import is_file, is_local
from trainer.runtime.local_files import refuse_link as refuse_link
from trainer.runtime.local_files import refuse_links as refuse_links

# The exceptions of a failed file operation, by Python and by TensorFlow.
REFUSALS = (OSError, tf.errors.OpError)


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file under a temporary name, and renames it.

    Its directory exists, locally or where `tf.io.gfile` finds it.

    Raises:
        OSError, tf.errors.OpError: writing failed; the file is unchanged.
    """
    # Two processes that write the same file need different temporary names.
    beside = f"{path}.{socket.gethostname()}-{os.getpid()}.tmp"
    try:
        if is_local(path):
            with local_files.create(beside) as file:
                file.write(_bytes(content))
        else:
            with tf.io.gfile.GFile(beside, "wb") as file:
                file.write(content)
        # Otherwise the rename may reach the disk before the content does, and a
        # power failure leaves an empty file.
        synchronize(beside)
        # A file cannot be renamed onto a directory.
        if is_local(path) and os.path.isdir(path):
            local_files.set_aside(path, "it is a directory")
        tf.io.gfile.rename(beside, path, overwrite=True)
        # The rename itself is in the directory.
        synchronize(os.path.dirname(path) or ".")
    # A signal may raise anywhere in here, and not only an `Exception`.
    except BaseException:
        remove_if_possible(beside)
        raise


def make_directory(path: str) -> list[str]:
    """Creates what is missing of a path, safe against a power failure.

    Returns:
        The directories that were missing, innermost first.
    """
    missing = []
    while path and not tf.io.gfile.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing:
        tf.io.gfile.makedirs(missing[0])
    # A directory's name is in its parent, which must be on disk as well.
    for made in reversed(missing):
        synchronize(os.path.dirname(made) or ".")
    return missing


def synchronize(path: str) -> None:
    """Flushes a local file or directory to disk; ignores remote ones."""
    if not os.path.exists(path):
        return
    # Enough for fsync, and a directory cannot be opened in another way.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str) -> bytes:
    """Reads a whole file, and never blocks on a pipe or device.

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
        ValueError: it is not JSON, or is local and cannot be read.
        tf.errors.OpError: it is remote, and cannot be read at the moment.
    """
    try:
        return json.loads(read(path))
    except OSError as error:
        raise ValueError(f"it cannot be read: {error}") from error
    # Python's JSON parser recurses, and a damaged file may be nested.
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def set_aside(path: str, why: str) -> None:
    """Renames a file that cannot be used, with a warning.

    Raises:
        UserError: renaming failed.
    """
    other = _aside(path)
    try:
        tf.io.gfile.rename(path, other)
    except REFUSALS as error:
        raise UserError(
            f"{path} cannot be used ({why}) and cannot be renamed: {error}"
        ) from None
    logging.warning(
        "%s cannot be used: %s. It was renamed to %s.", path, why, other
    )


def keep_copy(path: str, content: bytes, why: str) -> None:
    """Keeps a copy of a file that is partly damaged, with a warning.

    Raises:
        OSError, tf.errors.OpError: writing failed.
    """
    other = _aside(path)
    write_whole(other, content)
    logging.warning(
        "%s is damaged: %s. A copy is kept in %s.", path, why, other
    )


def _aside(path: str) -> str:
    if is_local(path):
        return local_files.aside(path)
    # At random: on a store, looking for a free number takes a request each.
    return f"{path}.damaged-{uuid.uuid4().hex[:8]}"


def prepare_file(directory: str, name: str) -> None:
    """Makes sure that a run can append to a file.

    Raises:
        UserError: it is a link, or something else that cannot be renamed.
    """
    refuse_links(directory, name)
    path = os.path.join(directory, name)
    if is_local(path) and os.path.exists(path) and not is_file(path):
        set_aside(path, "it is not a regular file")


def prepare_directory(directory: str, name: str) -> None:
    """Makes sure that a run can create a directory.

    Raises:
        UserError: it is a link, or something else that cannot be renamed.
    """
    refuse_links(directory, name)
    path = directory
    for part in name.split("/"):
        path = os.path.join(path, part)
        if is_local(path) and os.path.exists(path) and not os.path.isdir(path):
            set_aside(path, "it is not a directory")


def append(path: str, text: str) -> None:
    """Appends to a file of the run, whose directory exists.

    Raises:
        OSError, tf.errors.OpError: writing failed, or the path is a link.
    """
    if is_local(path):
        with local_files.open_to_append(path) as local:
            local.write(_bytes(text))
        return
    # Objects are written whole; not every store's client hides that.
    before = read(path) if exists(path) else b""
    write_whole(path, before + _bytes(text))


def exists(path: str) -> bool:
    """Returns whether a path exists, even as a broken link."""
    if is_local(path):
        return os.path.lexists(path)
    return bool(tf.io.gfile.exists(path))


def remove(path: str) -> None:
    """Removes a file, a link or a whole directory, if it exists."""
    # `tf.io.gfile.rmtree` would follow a link, and empty its target.
    if is_local(path):
        local_files.remove(path)
    elif tf.io.gfile.isdir(path):
        tf.io.gfile.rmtree(path)
    elif tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def replace_directory(source: str, target: str, *, last: str) -> None:
    """Renames a directory to a name that another one may have.

    An object store renames file by file. There, the old directory goes first,
    and the file by which readers know a complete one comes last.

    Args:
        source: the new directory.
        target: its name; what has it is deleted.
        last: that file's name in the directory.

    Raises:
        OSError, tf.errors.OpError: renaming failed.
    """
    if is_local(target):
        old = f"{target}.old"
        # A directory cannot replace one that is not empty.
        if exists(target):
            tf.io.gfile.rename(target, old)
        tf.io.gfile.rename(source, target)
        remove(old)
        return
    remove(os.path.join(target, last))
    remove(target)
    names = [
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, files in tf.io.gfile.walk(source)
        for name in files
    ]
    for name in sorted(names, key=lambda name: name == last):
        path = os.path.join(target, name)
        tf.io.gfile.makedirs(os.path.dirname(path))
        tf.io.gfile.rename(os.path.join(source, name), path)
    remove(source)


def remove_if_possible(path: str) -> None:
    """Removes a file or a directory, to clean up after an error.

    A failure is ignored, because the user must see the original error.
    """
    with contextlib.suppress(*REFUSALS):
        remove(path)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
