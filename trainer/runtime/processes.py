"""What is known about a process of this machine by its number."""

import os
import time
from typing import Any


def is_alive(pid: Any) -> bool:
    """Whether a number, as a file may hold it, is that of a live process."""
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    try:
        # Signal 0 is not sent: this only checks whether the process exists.
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    # It exists, as another user's.
    except PermissionError:
        pass
    # A zombie is dead, but its parent has not yet asked for its exit code.
    return _stat(pid)[:1] != [b"Z"]


def age(pid: int) -> float | None:
    """Seconds since a process began; `None` if that is not known."""
    try:
        # Field 22, starttime, of proc(5), in clock ticks since boot.
        begin = int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - begin, 0.0)
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def _stat(pid: int) -> list[bytes]:
    """The fields of `/proc/PID/stat` from the state on; none if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may contain anything.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
