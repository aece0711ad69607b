"""A best-effort lock for file systems without locks, such as object stores.

The holder writes a file with a unique number, and renews it. There is no write
that fails if another process was faster, so the file is read again after a
while: the last writer holds the lease. A lease that is no longer renewed is
taken over. That happens at once if its process is known to be dead, or was
started by the same launcher, which runs one chief at a time.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.runtime.atomic_files import (
    REFUSALS,
    remove_if_possible,
    write_whole,
)
from trainer.runtime.exit_report import LAUNCHER
from trainer.runtime.processes import is_alive

# Several times within a lease, so that a failed renewal does no harm.
_RENEW_SECONDS = 15.0
# A lease that was not renewed for this long has expired.
_LEASE_SECONDS = 60.0
# The clocks of two hosts may differ, but not by this much. A lease this old has
# expired without watching it first.
_LONG_SECONDS = 600.0
# How long a write may take until all hosts see it.
_SETTLE_SECONDS = 2.0


@contextlib.contextmanager
def held(
    path: str,
    holder: dict[str, Any],
    *,
    in_use: Callable[[str, dict[str, Any]], UserError],
) -> Iterator[Callable[[], None]]:
    """Holds a lease while it is open.

    Yields:
        A function that raises if another run has taken the lease.

    Raises:
        UserError: another process holds it, or it cannot be written.
    """
    mine = {
        **holder,
        # The number of a process is used again; this one is not.
        "nonce": uuid.uuid4().hex,
        "launcher": os.environ.get(LAUNCHER),
        "namespace": _namespace(),
    }
    lease = _Lease(path, mine, in_use)
    try:
        lease.wait_for_holder(_LEASE_SECONDS)
        lease.write()
        # Another process may have written at the same time. After this pause
        # both see the same last writer.
        time.sleep(_SETTLE_SECONDS)
        lease.check()
    except REFUSALS as error:
        raise UserError(f"{path} cannot be written: {error}") from None
    stop = threading.Event()
    thread = threading.Thread(
        target=lease.keep,
        args=(stop, _RENEW_SECONDS),
        name="lease",
        daemon=True,
    )
    thread.start()
    try:
        yield lease.raise_if_lost
    finally:
        stop.set()
        # Before the release: a renewal under way would write the file again.
        thread.join(timeout=_RENEW_SECONDS)
        lease.release()


class _Lease:
    def __init__(
        self,
        path: str,
        mine: dict[str, Any],
        in_use: Callable[[str, dict[str, Any]], UserError],
    ) -> None:
        self._path = path
        self._mine = mine
        self._in_use = in_use
        self._lost: UserError | None = None

    def wait_for_holder(self, expire: float) -> None:
        """Waits until no other process holds it.

        Raises:
            UserError: another process holds it, and renews it.
        """
        first = self._read()
        if not first or _is_gone(first, self._mine):
            return
        logging.info("Watching for %g s whether %s is renewed.", expire, first)
        deadline = time.monotonic() + expire
        while time.monotonic() < deadline:
            time.sleep(min(1.0, expire / 10))
            now = self._read()
            if not now:
                return
            if now != first:
                raise self._in_use(self._path, now)

    def write(self) -> None:
        """Takes or renews the lease."""
        record = {**self._mine, "renewed": time.time()}
        write_whole(self._path, json.dumps(record) + "\n")

    def check(self) -> None:
        """Raises a `UserError` if another process has taken it."""
        now = self._read()
        if now and now.get("nonce") != self._mine["nonce"]:
            raise self._in_use(self._path, now)

    def keep(self, stop: threading.Event, renew: float) -> None:
        """Renews the lease until it is stopped, or has lost it."""
        while not stop.wait(renew):
            try:
                self.check()
                self.write()
            except UserError as error:
                # For the main thread: raised here, it would end this thread
                # only.
                self._lost = error
                logging.error("%s", error)
                return
            # A short outage of the store must not end the run.
            except REFUSALS as error:
                logging.warning("%s cannot be renewed: %s", self._path, error)

    def raise_if_lost(self) -> None:
        """Raises a `UserError` if `keep` has lost it."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Removes the file if this run still holds the lease."""
        with contextlib.suppress(UserError, *REFUSALS):
            self.check()
            remove_if_possible(self._path)

    def _read(self) -> dict[str, Any]:
        """Returns the content of the file; empty if it cannot be read."""
        if not tf.io.gfile.exists(self._path):
            return {}
        try:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                # Bounded, because anything may be in the file's place.
                found = json.loads(file.read(1 << 16))
        # The holder has released it since the line above.
        except tf.errors.NotFoundError:
            return {}
        # This is no lease, so nobody renews it.
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _is_gone(holder: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Whether the holder is known not to renew it again."""
    launcher = mine["launcher"]
    # A launcher restarts the chief only after the previous one has ended.
    if launcher is not None and holder.get("launcher") == launcher:
        return True
    renewed = holder.get("renewed")
    if not isinstance(renewed, int | float):
        return True
    if time.time() - renewed > _LONG_SECONDS:
        return True
    here = (socket.gethostname(), mine["namespace"])
    # The number of a process means nothing on another host or in another
    # container.
    if (holder.get("host"), holder.get("namespace")) != here:
        return False
    return not is_alive(holder.get("pid"))


def _namespace() -> str | None:
    """Returns the namespace of process numbers; `None` if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
