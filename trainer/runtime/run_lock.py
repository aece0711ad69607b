"""The lock of a run directory, which allows one run at a time.

Only the chief takes the lock; a process that only reads, such as an evaluator,
does not need it. On a local disk it is `flock`, which the kernel releases
however the process dies, so that the next attempt never waits for a dead one.
`flock` is tied to the open file and not to the process, so a forked child
would hold it after its parent's death. But POSIX locks (`lockf`) are lost as
soon as the process closes any descriptor of the file, for instance in a
callback that copies the run directory, and do not exclude a second run in the
same process. So this uses `flock`, and a forked child closes the descriptor.

Object stores and file systems without `flock` get a lease. The holder writes a
file with a unique number, and renews it. There is no write that fails if
another process was faster, so the file is read again after a while: the last
writer holds the lease. A lease that is no longer renewed is taken over: after
a minute, or at once if it was started by the same launcher, which runs one
chief at a time.
"""

import contextlib
import datetime
import errno
import fcntl
import functools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from trainer.errors import UserError
from trainer.runtime import files
from trainer.runtime.process_exit import LAUNCHER
from trainer.runtime.run_paths import prepare_file

FILE_NAME = "run.lock"
# A killed process may take a moment to end.
_WAIT_SECONDS = 3.0
_POLL_SECONDS = 0.1
# How long another host may take to see the lock.
_SHARED_SECONDS = 10.0
# No link is followed.
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Over NFS, Linux turns `flock` into a POSIX lock, which may fail with EACCES.
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
# Several times within a lease, so that a failed renewal does no harm.
_RENEW_SECONDS = 15.0
# A lease that was not renewed for this long has expired.
_LEASE_SECONDS = 60.0
# The clocks of two hosts may differ, but not by this much. A lease this old has
# expired without watching it first.
_LONG_SECONDS = 600.0
# How long a write may take until all hosts see it.
_SETTLE_SECONDS = 2.0

_held: set[int] = set()


class DirectoryLost(UserError):
    """Another run may write where this one did: it must write nothing more."""


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
        has taken over the directory in spite of the lock, or could.

    Raises:
        UserError: another run uses the directory, or it is not writable.
        StartAgain: it cannot be used at the moment.
    """
    if model_dir is None:
        yield lambda: None
        return
    path = os.path.join(model_dir, FILE_NAME)
    local = files.is_local(model_dir)
    # Absolute: what is removed at the end is what was made.
    folder = os.path.abspath(model_dir) if local else model_dir
    try:
        made = files.make_directory(folder)
        prepare_file(model_dir, FILE_NAME)
        descriptor = _lock(path) if local else None
    except OSError as error:
        what = f"model_dir {model_dir} cannot be written"
        raise files.cannot(what, error) from None
    if descriptor is None:
        with _leased(path) as check:
            yield check
        return
    try:
        yield functools.partial(_require, descriptor, path)
    finally:
        _release(descriptor, path)
        # A run that is refused before it writes anything leaves no trace.
        with contextlib.suppress(OSError):
            # This stops at the first that is not empty.
            for directory in made:
                os.rmdir(directory)


def is_held(model_dir: str) -> bool:
    """Whether a run has the lock of a local directory, as far as is known."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(os.path.join(model_dir, FILE_NAME), flags)) as f:
            # For less time than a run that starts now would wait for it.
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def holder(model_dir: str) -> str | None:
    """Says which process has the lock or the lease of a directory, if any.

    Waits for a moment: a network disk shows a new file to other hosts late.
    """
    path = os.path.join(model_dir, FILE_NAME)
    deadline = time.monotonic() + _SHARED_SECONDS
    while not (found := _read(path)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return f"{found.get('host')}, process {found.get('pid')}" if found else None


def _lock(path: str) -> int | None:
    """Returns a descriptor that holds the lock; `None` without `flock`."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        descriptor = os.open(path, _OPEN, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(descriptor, path):
                _held.add(descriptor)
                # For messages and `holder`; the lock itself does not need it.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(_myself()).encode(), 0)
                    # A network disk may keep it from other hosts until then.
                    os.fsync(descriptor)
                return descriptor
            # The lock is on a file that the previous run has just removed.
            os.close(descriptor)
            continue
        except OSError as error:
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
            raise _in_use(path, _read(path))
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


def _require(descriptor: int, path: str) -> None:
    """Checks that a directory is still that of the run that holds its lock.

    Raises:
        DirectoryLost: it was moved, or its lock was removed.
    """
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        there = None
    except OSError:
        return  # A network disk may not answer for a moment.
    if there is None or not os.path.samestat(os.fstat(descriptor), there):
        raise DirectoryLost(
            f"{path} is no longer the lock of this run: its directory was "
            "moved, or the file removed, and another run may be there now. "
            "This one ends, and writes nothing more. Continue from its newest "
            "checkpoint: set --model_dir to where it is now."
        )


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


@contextlib.contextmanager
def _leased(path: str) -> Iterator[Callable[[], None]]:
    """Holds a lease; see `locked`."""
    # The number of a process is used again; this one is not.
    mine = {**_myself(), "nonce": uuid.uuid4().hex}
    lost: list[UserError] = []
    stop = threading.Event()

    def write() -> None:
        files.write_whole(path, json.dumps({**mine, "renewed": time.time()}))

    def check() -> None:
        now = _read(path)
        if now and now.get("nonce") != mine["nonce"]:
            lost.append(_in_use(path, now))

    def raise_if_lost() -> None:
        if lost:
            raise lost[0]

    def keep() -> None:
        while not lost and not stop.wait(_RENEW_SECONDS):
            # A short outage of the store must not end the run.
            try:
                check()
                if not lost:
                    write()
            except OSError as error:
                logging.warning("%s cannot be renewed: %s", path, error)

    try:
        _wait_for_end(path)
        write()
        # Another process may have written at the same time. After this pause
        # both see the same last writer.
        time.sleep(_SETTLE_SECONDS)
        check()
    except OSError as error:
        raise files.cannot(f"{path} cannot be written", error) from None
    raise_if_lost()
    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        # The main thread is to call it: raised in the other one, it would end
        # that one only.
        yield raise_if_lost
    finally:
        stop.set()
        # Before the release: a renewal under way would write the file again.
        thread.join(timeout=_RENEW_SECONDS)
        with contextlib.suppress(OSError):
            check()
            if not lost:
                files.remove(path)


def _wait_for_end(path: str) -> None:
    """Waits until a lease that may be held has expired.

    Raises:
        UserError: it is renewed meanwhile.
    """
    first = _read(path)
    launcher, renewed = os.environ.get(LAUNCHER), first.get("renewed")
    is_dead = (
        # A launcher restarts the chief only after the previous one has ended.
        (launcher is not None and first.get("launcher") == launcher)
        or not isinstance(renewed, int | float)
        or time.time() - renewed > _LONG_SECONDS
    )
    if is_dead:
        return
    logging.info(
        "Watching for %g s whether %s is renewed.", _LEASE_SECONDS, first
    )
    deadline = time.monotonic() + _LEASE_SECONDS
    while (now := _read(path)) == first and time.monotonic() < deadline:
        time.sleep(min(1.0, _LEASE_SECONDS / 10))
    if now and now != first:
        raise _in_use(path, now)


def _read(path: str) -> dict[str, Any]:
    """Returns who holds a lock or a lease, as far as the file tells."""
    return files.read_record(path)


def _myself() -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": now.isoformat(timespec="seconds"),
        "launcher": os.environ.get(LAUNCHER),
    }


def _in_use(path: str, holder: dict[str, Any]) -> UserError:
    """Returns the error that names the holder of a lock."""
    who = "another process"
    if holder:
        who = (
            f"process {holder.get('pid')} on {holder.get('host')}, which "
            f"started at {holder.get('start')},"
        )
    return UserError(
        f"model_dir {os.path.dirname(path)} is in use: {who} trains there. "
        "Wait until it ends, or choose another --model_dir."
    )
