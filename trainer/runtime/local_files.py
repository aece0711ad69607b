"""Local files of a run: nothing outside its directory is written or removed.

Anyone who can write to a run directory can leave links in it. Links are never
followed here: removing one removes only the link, and writing replaces it by a
regular file. Nothing here imports TensorFlow.
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

# How TensorFlow recognizes a path of another file system, such as gs://.
_SCHEME = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
# The limits of Linux, and room for the longest name below a run directory.
_PATH_BYTES = 4096
_NAME_BYTES = 255
_ROOM_BYTES = 256
# O_EXCL refuses what somebody else has put there a moment ago.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK


def is_local(path: str) -> bool:
    """Returns whether a path is in one of this machine's file systems."""
    return not _SCHEME.match(path)


def check_path(path: str) -> None:
    """Refuses a run directory whose files could not be opened.

    Raises:
        UserError: TensorFlow or the file system cannot open such a path.
    """
    if not is_local(path):
        return
    shown = ascii(path if len(path) < 200 else f"{path[:200]}...")
    try:
        encoded = os.fsencode(os.path.abspath(path))
        # Python can hold file names that are not UTF-8 as surrogates.
        path.encode()
    except UnicodeError:
        raise UserError(
            f"model_dir {shown} is not valid UTF-8, which TensorFlow needs. "
            "Choose another --model_dir."
        ) from None
    if b"\0" in encoded:
        raise UserError(f"model_dir {shown} contains a NUL character.")
    longest = max(map(len, encoded.split(b"/")))
    if longest > _NAME_BYTES or len(encoded) > _PATH_BYTES - _ROOM_BYTES:
        raise UserError(
            f"model_dir {shown} is too long: {len(encoded)} bytes, and "
            f"{longest} in one name. The limits are "
            f"{_PATH_BYTES - _ROOM_BYTES} and {_NAME_BYTES}."
        )


def refuse_files(path: str) -> None:
    """Refuses a run directory that is a file, or leads through one.

    Raises:
        UserError: it does. Whether a path that is not local does is not known.
    """
    whole = os.path.abspath(path) if is_local(path) else ""
    found = whole
    while found and found != os.path.dirname(found):
        if os.path.exists(found) and not os.path.isdir(found):
            shown = (
                "is a file" if found == whole else f"lies below a file, {found}"
            )
            raise UserError(f"model_dir {path} {shown}. Name a directory.")
        found = os.path.dirname(found)


def plain(path: str) -> str:
    """Returns a path without the prefix `file://`, which means the same."""
    return path.removeprefix("file://")


def refuse_links(directory: str, name: str) -> None:
    """Refuses a run directory with a link where the run is going to write.

    Args:
        directory: the run directory; it may be a link itself.
        name: the file or folder to write, such as `"tensorboard/eval"`.

    Raises:
        UserError: it or one of its parent folders is a symbolic link.
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
    """Checks a directory right before a change in it.

    Raises:
        OSError: it is a symbolic link.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "is a symbolic link", path)


def create(path: str) -> BinaryIO:
    """Opens a new file; an existing one is removed, not overwritten."""
    # Overwriting would change the file under its other names (hard links), too.
    remove(path)
    return os.fdopen(os.open(path, _NEW | os.O_NOFOLLOW, 0o666), "wb")


def replace(path: str, content: bytes) -> None:
    """Writes a file under a temporary name, and renames it.

    Who reads it meanwhile finds the old content or the new. Only
    `atomic_files.write_whole` is also safe against a power failure.
    """
    with create(f"{path}.tmp") as file:
        file.write(content)
    os.replace(f"{path}.tmp", path)


def open_to_append(path: str) -> BinaryIO:
    """Opens a file of the run to append to it, and creates it if necessary.

    A file with a second name (a hard link) is replaced by a copy.

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
        raise OSError(errno.EINVAL, "is not a regular file", path)
    # A copy of a run by hard links must not write into the original.
    replace(path, read(path))
    # The copy has a single name, so this ends after one more round.
    return open_to_append(path)


def is_file(path: str) -> bool:
    """Returns whether a path is a regular file or a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    # Python raises ValueError for a NUL character.
    except (OSError, ValueError):
        return False


def read(path: str) -> bytes:
    """Reads a whole regular file.

    Raises:
        OSError: it cannot be read, or is something else, such as a named
            pipe that would block forever.
    """
    # Links are followed here, because reading changes nothing.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        return file.read()


def aside(path: str) -> str:
    """Returns an unused name for a file that is set aside."""
    # lexists: a broken link has the name, too, and renaming would replace it.
    names = (f"{path}.damaged-{number}" for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def set_aside(path: str, why: str) -> None:
    """Renames a file that cannot be used, with a warning.

    Raises:
        OSError: renaming failed.
    """
    other = aside(path)
    os.rename(path, other)
    logging.warning(
        "%s cannot be used: %s. It was renamed to %s.", path, why, other
    )


def remove(path: str) -> None:
    """Removes a file, a link or a whole directory, if it exists.

    The target of a link is left alone.
    """
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            # It does not follow links, not even new ones.
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
