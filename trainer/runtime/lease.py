"""A lock for where there are no locks, such as object stores: best effort.

Whoever holds it writes a file with a number of its own and renews it. There
is no write that fails if somebody else was faster, so the file is read again
after a while: the last one to write has it. One that is not renewed any more
is taken over; at once, if its process is known to be dead or was started by
the same launcher, which starts one chief at a time.
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

_RENEW_SECONDS = 15.0
# Not renewed for so long, it counts no more.
_LEASE_SECONDS = 60.0
# By the clocks of two hosts: then nobody needs to watch it first.
_LONG_SECONDS = 600.0
_SETTLE_SECONDS = 2.0


@contextlib.contextmanager
def held(
    path: str,
    holder: dict[str, Any],
    *,
    in_use: Callable[[str, dict[str, Any]], UserError],
) -> Iterator[Callable[[], None]]:
    """Holds a lease while it is open.

    Args:
        path: the lease's file; what `tf.io.gfile` knows.
        holder: who this is, for others to read.
        in_use: makes the error that says who holds it.

    Yields:
        A function that raises if another run has taken the lease.

    Raises:
        UserError: somebody else holds it, or it cannot be written.
    """
    mine = {
        **holder,
        "nonce": uuid.uuid4().hex,
        "launcher": os.environ.get(LAUNCHER),
        "namespace": _namespace(),
    }
    lease = _Lease(path, mine, in_use)
    try:
        lease.wait_for_holder(_LEASE_SECONDS)
        lease.write()
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
        thread.join(timeout=_RENEW_SECONDS)
        lease.give_back()


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
        """Returns when nobody else holds it.

        Raises:
            UserError: somebody does, and renews it.
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
        """Takes it, or renews it."""
        record = {**self._mine, "renewed": time.time()}
        write_whole(self._path, json.dumps(record) + "\n")

    def check(self) -> None:
        """Raises a `UserError` if somebody else has it by now."""
        now = self._read()
        if now and now.get("nonce") != self._mine["nonce"]:
            raise self._in_use(self._path, now)

    def keep(self, stop: threading.Event, renew: float) -> None:
        """Renews it until it is told to stop, or has lost it."""
        while not stop.wait(renew):
            try:
                self.check()
                self.write()
            except UserError as error:
                self._lost = error
                logging.error("%s", error)
                return
            except REFUSALS as error:
                logging.warning("%s cannot be renewed: %s", self._path, error)

    def raise_if_lost(self) -> None:
        """Raises a `UserError` if `keep` has lost it."""
        if self._lost is not None:
            raise self._lost

    def give_back(self) -> None:
        """Removes the file, if it is still this run's."""
        with contextlib.suppress(UserError, *REFUSALS):
            self.check()
            remove_if_possible(self._path)

    def _read(self) -> dict[str, Any]:
        """What the file says; empty without one that can be read."""
        if not tf.io.gfile.exists(self._path):
            return {}
        try:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                found = json.loads(file.read(1 << 16))
        except tf.errors.NotFoundError:
            return {}
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _is_gone(holder: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Whether the holder is known not to renew it any more."""
    launcher = mine["launcher"]
    if launcher is not None and holder.get("launcher") == launcher:
        return True
    renewed = holder.get("renewed")
    if not isinstance(renewed, int | float):
        return True
    if time.time() - renewed > _LONG_SECONDS:
        return True
    here = (socket.gethostname(), mine["namespace"])
    if (holder.get("host"), holder.get("namespace")) != here:
        return False
    return not _is_alive(holder.get("pid"))


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _namespace() -> str | None:
    """Which processes' numbers are known here; `None` where nothing tells."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
