"""Finds the processes that use this host's TPU chips.

TensorFlow's library for TPUs lets one process at a time use them: it locks
`/tmp/libtpu_lockfile` when TensorFlow is imported. Where that fails,
TensorFlow goes on without a TPU, and only says later that there is none.
"""

import dataclasses
import glob
import os
import pathlib
import re

LOCK_FILE = "/tmp/libtpu_lockfile"
_CHIP = re.compile(r"/dev/(accel|vfio/)\d+")


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that uses the chips.

    Attributes:
        pid: its number.
        command: its command line; empty if it cannot be read.
        file: the device, or the lock file, by which it was found.
    """

    pid: int
    command: str
    file: str

    def __str__(self) -> str:
        command = f" ({self.command})" if self.command else ""
        return f"process {self.pid}{command}, which holds {self.file}"


def holders() -> list[Holder]:
    """Returns the other processes that use this host's chips."""
    found = _of_devices() | _of_lock()
    found.pop(os.getpid(), None)
    return [
        Holder(pid, _command(pid), file) for pid, file in sorted(found.items())
    ]


def _of_devices() -> dict[int, str]:
    """Processes that have a chip open; only one's own, unless one is root."""
    found = {}
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        # It has ended or closed the file meanwhile, or is another user's.
        except OSError:
            continue
        if _CHIP.fullmatch(target):
            found[int(link.split("/")[2])] = target
    return found


def _of_lock() -> dict[int, str]:
    """The process that has locked the file, whoever's it is."""
    try:
        status = os.stat(LOCK_FILE)
        locks = pathlib.Path("/proc/locks").read_text()
    except OSError:
        return {}
    # Such as "1: POSIX  ADVISORY  WRITE 8508 fe:00:2151975 0 EOF".
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    place = f"{device}:{status.st_ino}"
    held = [line.split() for line in locks.splitlines()]
    # A line of one who waits has "->" in the second place.
    return {
        int(fields[4]): LOCK_FILE
        for fields in held
        if fields[5:6] == [place] and fields[1] != "->"
    }


def _command(pid: int) -> str:
    try:
        content = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    words = content.rstrip(b"\0").decode(errors="replace").split("\0")
    line = " ".join(words)
    return line if len(line) <= 60 else f"{line[:60]}..."
