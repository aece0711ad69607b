"""The lock of a run directory, which allows one run at a time.

Only the chief takes the lock; a process that only reads, such as an evaluator,
does not need it. On a local disk it is `flock`, which the kernel releases
however the process dies, so that the next attempt never waits for a dead one.
`flock` is tied to the open file and not to the process, so a forked child
would hold it after its parent's death. But POSIX locks (`lockf`) are lost as
soon as the process closes any descriptor of the file, for instance in a
callback that copies the run directory, and do not exclude a second run in the
same process. So this uses `flock`, and a forked child closes the descriptor.

Object stores and file systems without `flock` get a lease, see
`trainer.runtime.lease`.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from trainer.errors import UserError
from trainer.runtime import lease
from trainer.runtime.files import is_local, make_directory
from trainer.runtime.run_paths import prepare_file

FILE_NAME = "run.lock"
# A killed process may take a moment to end.
_WAIT_SECONDS = 3.0
_POLL_SECONDS = 0.1
_MOST_BYTES = 1 << 16
# No link is followed.
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Over NFS, Linux turns `flock` into a POSIX lock, which may fail with EACCES.
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)

_held: set[int] = set()


def _close_in_child() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def locked(model_dir: str | None) -> Iterator[Callable[[], None]]:
    """Keeps other runs out of a run directory.

    Args:
        model_dir: the run directory, created if necessary. `None` locks
            nothing.

    Yields:
        A function to call regularly: it raises a `UserError` if another run
        has taken over the directory in spite of the lock.

    Raises:
        UserError: another run uses the directory, or it is not writable.
    """
    if model_dir is None:
        yield lambda: None
        return
    path = os.path.join(model_dir, FILE_NAME)
    local = is_local(model_dir)
    try:
        # Absolute: what is removed at the end is what was made.
        made = make_directory(
            os.path.abspath(model_dir) if local else model_dir
        )
        prepare_file(model_dir, FILE_NAME)
        descriptor = _lock(path) if local else None
    except OSError as error:
        raise UserError(
            f"model_dir {model_dir} cannot be written: {error}"
        ) from None
    if descriptor is None:
        with lease.held(path, _myself(), in_use=in_use) as check:
            yield check
        return
    try:
        yield lambda: None
    finally:
        _release(descriptor, path)
        # A run that is refused before it writes anything leaves no trace.
        with contextlib.suppress(OSError):
            # This stops at the first that is not empty.
            for directory in made:
                os.rmdir(directory)


def in_use(path: str, holder: dict[str, Any]) -> UserError:
    """Returns the error that names the holder of a lock."""
    directory = os.path.dirname(path)
    who = "another process"
    if holder:
        who = (
            f"process {holder.get('pid')} on {holder.get('host')}, which "
            f"started at {holder.get('start')},"
        )
    return UserError(
        f"model_dir {directory} is in use: {who} trains there. Wait for its "
        "end, or choose another --model_dir."
    )


def _myself() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": datetime.datetime.now(datetime.UTC).isoformat(
            timespec="seconds"
        ),
    }


def _lock(path: str) -> int | None:
    """Returns a descriptor that holds the lock; `None` without `flock`."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        descriptor = os.open(path, _OPEN, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(descriptor, path):
                _held.add(descriptor)
                # For messages; the lock itself does not need it.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    record = json.dumps(_myself()).encode()
                    os.pwrite(descriptor, record + b"\n", 0)
                return descriptor
            # The lock is on a file that the previous run has just removed.
            os.close(descriptor)
            continue
        except OSError as error:
            holder = _read(descriptor)
            os.close(descriptor)
            if error.errno in _WITHOUT_FLOCK:
                logging.warning(
                    "%s: the file system has no locks (%s). A lease detects "
                    "another run in this directory within a minute.",
                    path,
                    error.strerror,
                )
                return None
            if error.errno not in _TAKEN:
                raise
        if time.monotonic() >= deadline:
            raise in_use(path, holder)
        time.sleep(_POLL_SECONDS)


def _is_still_at(descriptor: int, path: str) -> bool:
    """Whether the locked file is still the one at the path.

    The previous run may have removed it meanwhile. A file that has a second
    name may be that of a copy of the run by hard links, whose lock this must
    not be, so only this name is removed.
    """
    mine = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not os.path.samestat(mine, there):
        return False
    if mine.st_nlink > 1:
        os.unlink(path)
        return False
    return True


def _read(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _release(descriptor: int, path: str) -> None:
    # In a forked child it is closed already, and still held by the parent.
    if descriptor not in _held:
        return
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        # While the lock is held: afterwards the name may be the next run's.
        if _is_still_at(descriptor, path):
            os.unlink(path)
    os.close(descriptor)
