"""Local files of a run: nothing outside its directory is written or removed.

Whoever can write to a run directory can leave links in it. Here links are
never followed: what is removed is the link, and what is written is a file of
the run's own. Nothing here imports TensorFlow.
"""

import errno
import itertools
import os
import re
import shutil
import stat
from typing import BinaryIO

from absl import logging

from trainer.errors import UserError

# How TensorFlow tells a path of another file system, such as gs://.
_SCHEME = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
# What Linux opens, and room for the longest name below a run directory.
_PATH_BYTES = 4096
_NAME_BYTES = 255
_ROOM_BYTES = 256
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
# Without O_NONBLOCK opening a named pipe waits for its other end.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK


def is_local(path: str) -> bool:
    """Whether a path is one of this machine's file systems."""
    return not _SCHEME.match(path)


def check_path(path: str) -> None:
    """Refuses a run directory whose files could not be named.

    Raises:
        UserError: TensorFlow or the file system cannot open such a path.
    """
    if not is_local(path):
        return
    shown = ascii(path if len(path) < 200 else f"{path[:200]}...")
    try:
        encoded = os.fsencode(os.path.abspath(path))
        path.encode()
    except UnicodeError:
        raise UserError(
            f"model_dir {shown} is not valid UTF-8, which TensorFlow needs. "
            "Choose another --model_dir."
        ) from None
    if b"\0" in encoded:
        raise UserError(f"model_dir {shown} holds a NUL character.")
    longest = max(map(len, encoded.split(b"/")))
    if longest > _NAME_BYTES or len(encoded) > _PATH_BYTES - _ROOM_BYTES:
        raise UserError(
            f"model_dir {shown} is too long: {len(encoded)} bytes, and "
            f"{longest} in one name. At most {_PATH_BYTES - _ROOM_BYTES} and "
            f"{_NAME_BYTES} will do."
        )


def plain(path: str) -> str:
    """A path without `file://`, which is as local as one without."""
    return path.removeprefix("file://")


def refuse_links(directory: str, name: str) -> None:
    """Refuses a run directory in which a link stands where a run writes.

    Args:
        directory: the run directory; it may be a link itself.
        name: what is going to be written there, such as `"tensorboard/eval"`.

    Raises:
        UserError: it, or a folder that leads to it, is a symbolic link.
    """
    if not is_local(directory):
        return
    path = directory
    for part in name.split("/"):
        path = os.path.join(path, part)
        if os.path.islink(path):
            raise UserError(
                f"{path} is a symbolic link to {os.readlink(path)}, and a run "
                "writes nothing outside its own directory. Remove the link, "
                "or put the whole run there with --model_dir."
            )


def refuse_link(path: str) -> None:
    """Checks a directory right before something in it changes.

    Raises:
        OSError: it is a symbolic link.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "is a symbolic link", path)


def create(path: str) -> BinaryIO:
    """Opens a new file; what has its name is removed, and never written."""
    remove(path)
    return os.fdopen(os.open(path, _NEW | os.O_NOFOLLOW, 0o666), "wb")


def open_to_append(path: str) -> BinaryIO:
    """Opens a file of the run's own to add to it; made if it is not there.

    A file that has another name too (a hard link) is replaced by a copy.

    Raises:
        OSError: a link, a directory or a device has its name, or the file
            system refuses.
    """
    descriptor = os.open(path, _APPEND | _CAREFULLY, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return os.fdopen(descriptor, "ab")
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", path)
    copy = f"{path}.{os.getpid()}.tmp"
    with open(path, "rb") as source, create(copy) as target:
        shutil.copyfileobj(source, target)
    os.replace(copy, path)
    return open_to_append(path)


def is_file(path: str) -> bool:
    """Whether a path is a regular file, or leads to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def read(path: str) -> bytes:
    """Reads a regular file whole.

    Raises:
        OSError: it is something else, such as a named pipe on which one
            would wait for ever, or cannot be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        return file.read()


def set_aside_unless_file(path: str) -> None:
    """Sets aside what stands where a file of the run's own belongs.

    Raises:
        OSError: the file system refused.
    """
    if os.path.lexists(path) and not is_file(path):
        set_aside(path, "it is no regular file")


def aside(path: str) -> str:
    """A name for what cannot be used, which nothing has yet."""
    names = (f"{path}.damaged-{number}" for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def set_aside(path: str, why: str) -> None:
    """Gives what cannot be used another name, with a warning.

    Args:
        path: local; something is there.
        why: what is wrong with it, such as `"it is a directory"`.

    Raises:
        OSError: the file system refused.
    """
    other = aside(path)
    os.rename(path, other)
    logging.warning("%s cannot be used: %s. It is %s now.", path, why, other)


def remove(path: str) -> None:
    """Removes a file, a link or a whole directory; it need not be there.

    Of a link the link goes, and what it leads to stays.
    """
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            # It follows no link, not even one that appears meanwhile.
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
