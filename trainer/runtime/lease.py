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

from absl import logging

from trainer.errors import UserError
from trainer.runtime.exit_report import LAUNCHER
from trainer.runtime.files import read_json, remove, write_whole
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
    lost: list[UserError] = []

    def write() -> None:
        record = {**mine, "renewed": time.time()}
        write_whole(path, json.dumps(record) + "\n")

    def check() -> None:
        now = _read(path)
        if now and now.get("nonce") != mine["nonce"]:
            raise in_use(path, now)

    def keep() -> None:
        while not stop.wait(_RENEW_SECONDS):
            try:
                check()
                write()
            except UserError as error:
                # For the main thread: raised here, it would end this thread
                # only.
                lost.append(error)
                logging.error("%s", error)
                return
            # A short outage of the store must not end the run.
            except OSError as error:
                logging.warning("%s cannot be renewed: %s", path, error)

    def raise_if_lost() -> None:
        if lost:
            raise lost[0]

    try:
        renewed = _watch(path, mine)
        if renewed:
            raise in_use(path, renewed)
        write()
        # Another process may have written at the same time. After this pause
        # both see the same last writer.
        time.sleep(_SETTLE_SECONDS)
        check()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from None
    stop = threading.Event()
    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield raise_if_lost
    finally:
        stop.set()
        # Before the release: a renewal under way would write the file again.
        thread.join(timeout=_RENEW_SECONDS)
        with contextlib.suppress(UserError, OSError):
            check()
            remove(path)


def _watch(path: str, mine: dict[str, Any]) -> dict[str, Any]:
    """Returns another holder that renews its lease; empty if none does."""
    first = _read(path)
    if not first or _is_gone(first, mine):
        return {}
    seconds = _LEASE_SECONDS
    logging.info("Watching for %g s whether %s is renewed.", seconds, first)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(1.0, seconds / 10))
        now = _read(path)
        if now != first:
            return now
    return {}


def _read(path: str) -> dict[str, Any]:
    """Returns the content of the file; empty if there is no lease in it."""
    try:
        found = read_json(path)
    except (FileNotFoundError, ValueError):
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
