"""Local files of a run: nothing outside its directory is written or removed.

Whoever can write to a run directory can leave links in it. Here links are
never followed: what is removed is the link, and what is written is a file of
the run's own. Nothing here imports TensorFlow.
"""

import errno
import os
import re
import shutil
import stat
from typing import BinaryIO

from trainer.errors import UserError

# How TensorFlow tells a path of another file system, such as gs://.
_SCHEME = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
# Without O_NONBLOCK opening a named pipe waits for its other end.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK


def is_local(path: str) -> bool:
    """Whether a path is one of this machine's file systems."""
    return not _SCHEME.match(path)


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
