"""Files of a run, on local disks and in object stores.

On any file system, everything here raises only `OSError`. The caller knows
what it means for a run. A path with a scheme, such as `gs://`, goes
through `tf.io.gfile`, and only then TensorFlow is imported.

A file that is written is on the disk when the function returns, and another
process finds the old content or the new. Anyone who can write to a run
directory can leave links in it: links are read, but never written through, and
removing one removes only the link.
"""

import contextlib
import errno
import io
import itertools
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from absl import logging

from trainer.errors import StartAgain, UserError

# How TensorFlow recognizes a path of another file system, such as gs://.
_SCHEME = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
# O_EXCL refuses what another process has put there a moment ago.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_APPEND |= os.O_NOFOLLOW | os.O_NONBLOCK
# What is read first of the end of a file, in bytes.
_BLOCK = 1 << 16
# TensorFlow's error codes that Python has a subclass of `OSError` for.
_ERRORS = {3: errno.EINVAL, 5: errno.ENOENT, 6: errno.EEXIST, 7: errno.EACCES}
_ERRORS |= {8: errno.ENOSPC, 9: errno.EINVAL}
# What TensorFlow adds to its messages for its own developers.
_NODES = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:\w+\]")
# What a disk or a network may be over with when the run is started again.
_PASSING = {
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EREMOTEIO),
    *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNREFUSED),
}


class NotAFile(OSError):
    """A directory, a pipe or a device has the name of a file."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "is not a regular file", path)


def cannot(what: str, error: OSError) -> UserError | StartAgain:
    """Returns the error that ends a run for what its files do.

    Args:
        what: as `"/runs/a cannot be read"`.
        error: why.

    Returns:
        `StartAgain` where waiting may help, as with the input and output of a
        network disk, and `UserError` where it does not.
    """
    kind = StartAgain if error.errno in _PASSING else UserError
    return kind(f"{what}: {error}")


def is_local(path: str) -> bool:
    """Whether a path is in one of this machine's file systems."""
    return not _SCHEME.match(path)


@contextlib.contextmanager
def os_errors() -> Iterator[Any]:
    """Raises the errors of TensorFlow's operations as `OSError`.

    Yields:
        `tf.io.gfile`.
    """
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        code = _ERRORS.get(error.error_code, errno.EIO)
        raise OSError(code, _NODES.sub("", error.message)) from error


def is_directory(path: str) -> bool:
    """Whether a path is a directory, or a link to one."""
    if is_local(path):
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return _remote(path, "is_directory")


def exists(path: str) -> bool:
    """Whether a path exists, even as a broken link."""
    if is_local(path):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True
    return _remote(path, "length")


def _remote(path: str, attribute: str) -> bool:
    """Whether what is at a remote path has an attribute of `gfile.stat`."""
    # `gfile.isdir` and `gfile.exists` are False for whatever goes wrong.
    try:
        with os_errors() as gfile:
            found = getattr(gfile.stat(path), attribute)
    except FileNotFoundError:
        return False
    return attribute == "length" or bool(found)


def listing(directory: str) -> list[str]:
    """The names in a directory; none if it does not exist."""
    if not is_directory(directory):
        return []
    with contextlib.suppress(FileNotFoundError):
        if is_local(directory):
            return os.listdir(directory)
        with os_errors() as gfile:
            return [name.rstrip("/") for name in gfile.listdir(directory)]
    return []


def read(path: str) -> bytes:
    """Reads a whole file, and never waits for a pipe.

    Raises:
        NotAFile: there is something else.
    """
    with open_to_read(path) as file:
        return bytes(file.read())


@contextlib.contextmanager
def open_to_read(path: str) -> Iterator[Any]:
    """Opens a file, and never waits for a pipe; see `read`."""
    if is_local(path):
        with os.fdopen(_open(path, _READ), "rb") as local:
            yield local
        return
    with os_errors() as gfile, gfile.GFile(path, "rb") as remote:
        yield remote


def lines_from_end(path: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, the last one first, and where each begins.

    Only the end of the file is read, as far as the lines are taken.
    """
    with open_to_read(path) as file:
        file.seek(0, os.SEEK_END)
        end, size, rest = file.tell(), _BLOCK, b""
        while end:
            start = max(0, end - size)
            file.seek(start)
            text = file.read(end - start) + rest
            lines = io.BytesIO(text).readlines()
            # The first one may begin in the block before.
            rest = lines.pop(0) if start else b""
            place = start + len(text)
            for line in reversed(lines):
                place -= len(line)
                yield place, line
            # Longer ones, or a line of the whole file would be joined from
            # blocks in quadratic time.
            end, size = start, 2 * size


def read_json(path: str) -> Any:
    """Reads a JSON file.

    Raises:
        ValueError: it was read, and is not JSON, or no file has its name.
    """
    try:
        return json.loads(read(path))
    except NotAFile as error:
        raise ValueError(f"it {error.strerror}") from None
    # Python's JSON parser recurses, and a damaged file may be nested.
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_record(
    path: str,
    check: Callable[[Any, str], None] = lambda value, name: None,
    *,
    aside: str | None = None,
) -> dict[str, Any]:
    """Reads a JSON object; an empty one without a file, or for a damaged one.

    Args:
        path: of the file.
        check: raises a `ValueError` for what it must not be.
        aside: what follows from the damage; the file is then renamed, with
            this in a warning. `None` leaves it.
    """
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        check(found, "it")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        if aside is not None:
            set_aside(path, f"{error}{aside}")
        return {}
    return found


def write_json(path: str, value: Any) -> None:
    """Writes a JSON file; see `write_whole`."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file under a temporary name, and renames it.

    If it fails, the file is unchanged. Its directory exists.
    """
    data = content.encode() if isinstance(content, str) else content
    # Two processes that write the same file need different temporary names.
    beside = f"{path}.{socket.gethostname()}-{os.getpid()}.tmp"
    try:
        if is_local(path):
            # One that is there is not overwritten: that would change the file
            # under its other names (hard links), too.
            remove(beside)
            with os.fdopen(os.open(beside, _NEW, 0o666), "wb") as file:
                file.write(data)
                file.flush()
                # Otherwise the rename may reach the disk before the content
                # does, and a power failure leaves an empty file.
                os.fsync(file.fileno())
            # A file cannot be renamed onto a directory.
            if os.path.isdir(path) and not os.path.islink(path):
                set_aside(path, "it is a directory")
            os.replace(beside, path)
            synchronize(os.path.dirname(path) or ".")
        else:
            with os_errors() as gfile:
                with gfile.GFile(beside, "wb") as remote:
                    remote.write(data)
                gfile.rename(beside, path, overwrite=True)
    # A signal may raise anywhere in here, and not only an `Exception`.
    except BaseException:
        remove_if_possible(beside)
        raise


def append(path: str, text: str) -> None:
    """Appends to a file, whose directory exists."""
    if is_local(path):
        with open_to_append(path) as file:
            file.write(text.encode())
        return
    # Objects are written whole; not every store's client hides that.
    before = read(path) if exists(path) else b""
    write_whole(path, before + text.encode())


def cut(path: str, size: int, rest: bytes = b"") -> None:
    """Ends a file at a size, but for a rest; atomically."""
    if is_local(path) and not rest:
        with open_to_append(path) as file:
            file.truncate(size)
            os.fsync(file.fileno())
    else:
        write_whole(path, read(path)[:size] + rest)


def open_to_append(path: str) -> BinaryIO:
    """Opens a local file to append to it, and creates it if necessary.

    A file with a second name (a hard link) is replaced by a copy.
    """
    descriptor = _open(path, _APPEND)
    if os.fstat(descriptor).st_nlink == 1:
        return os.fdopen(descriptor, "ab")
    os.close(descriptor)
    # A copy of a run by hard links must not write into the original.
    write_whole(path, read(path))
    return open_to_append(path)


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFile(path)
    return descriptor


def make_directory(path: str) -> list[str]:
    """Creates what is missing of a path.

    Returns:
        The directories that were missing, innermost first.
    """
    missing = []
    while path and not is_directory(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing and is_local(missing[0]):
        os.makedirs(missing[0], exist_ok=True)
        # A directory's name is in its parent, which must be on disk as well.
        for made in reversed(missing):
            synchronize(os.path.dirname(made) or ".")
    elif missing:
        with os_errors() as gfile:
            gfile.makedirs(missing[0])
    return missing


def synchronize(path: str) -> None:
    """Flushes a local file or directory to disk; ignores remote ones."""
    if not is_local(path):
        return
    # Enough for fsync, and a directory cannot be opened in another way.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synchronize_tree(path: str) -> None:
    """Flushes a local file, or a directory with all that is in it, to disk."""
    if is_local(path):
        for folder, _, members in os.walk(path):
            for name in members:
                synchronize(os.path.join(folder, name))
            synchronize(folder)
        if not os.path.isdir(path):
            synchronize(path)


def remove(path: str) -> None:
    """Removes a file, a link or a whole directory, if it exists."""
    # `tf.io.gfile.rmtree` would follow a link, and empty its target.
    if not is_local(path):
        with os_errors() as gfile:
            if gfile.isdir(path):
                gfile.rmtree(path)
            elif gfile.exists(path):
                gfile.remove(path)
        return
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def remove_if_possible(path: str) -> None:
    """Removes a file or a directory, to clean up after an error.

    A failure is ignored, because the user must see the original error.
    """
    with contextlib.suppress(OSError):
        remove(path)


def refuse_link(path: str) -> None:
    """Checks a directory right before a change in it."""
    if is_local(path) and os.path.islink(path):
        raise OSError(errno.ELOOP, "is a symbolic link", path)


def replace_directory(source: str, target: str, *, last: str) -> None:
    """Renames a directory to a name that another one may have.

    An object store renames file by file. There, the old directory goes first,
    and the file by which readers know a complete one comes last.

    Args:
        source: the new directory.
        target: its name; what has it is deleted.
        last: that file's name in the directory.
    """
    if is_local(target):
        synchronize_tree(source)
        old = f"{target}.old"
        # A directory cannot replace one that is not empty.
        if exists(target):
            os.rename(target, old)
        os.rename(source, target)
        synchronize(os.path.dirname(target) or ".")
        remove_if_possible(old)
        return
    remove(os.path.join(target, last))
    remove(target)
    with os_errors() as gfile:
        names = [
            os.path.relpath(os.path.join(folder, name), source)
            for folder, _, members in gfile.walk(source)
            for name in members
        ]
        for name in sorted(names, key=lambda name: name == last):
            path = os.path.join(target, name)
            gfile.makedirs(os.path.dirname(path))
            gfile.rename(os.path.join(source, name), path)
    remove(source)


def set_aside(path: str, why: str) -> None:
    """Renames a file that cannot be used, with a warning."""
    other = _unused(path)
    if is_local(path):
        os.rename(path, other)
    else:
        with os_errors() as gfile:
            gfile.rename(path, other)
    logging.warning(
        "%s cannot be used: %s. It was renamed to %s.", path, why, other
    )


def keep_copy(path: str, content: bytes, why: str) -> None:
    """Keeps what goes of a file that is partly damaged, with a warning."""
    other = _unused(path)
    write_whole(other, content)
    logging.warning("%s is damaged: %s, kept in %s.", path, why, other)


def _unused(path: str) -> str:
    names = (f"{path}.damaged-{number}" for number in itertools.count(1))
    return next(name for name in names if not exists(name))
