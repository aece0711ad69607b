"""The parent's end: one process of a contender."""

import contextlib
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.orders import Task

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Refused(Exception):
    """A contender cannot take part; the message says why."""


class Process:
    """One process of a contender, and the pipes to it.

    Args:
        task: what it trains.
        log: the file for its output.
        environ: variables in addition to those of this process.
    """

    def __init__(
        self, task: Task, log: pathlib.Path, environ: Mapping[str, str]
    ) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._log = log
        with open(log, "wb") as file:
            self._popen = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.contenders"),
                    *(json.dumps(task), str(orders), str(answers)),
                ],
                cwd=ROOT,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(orders, answers),
                # So that whatever it starts can be ended with it.
                start_new_session=True,
            )
        os.close(orders)
        os.close(answers)
        self._read = b""

    def go(self) -> None:
        """Lets it begin its turn."""
        os.write(self._orders, b"go\n")

    def answer(self, limit: float) -> dict[str, Any]:
        """What it says next.

        Raises:
            Refused: it cannot take part, has ended, or takes too long.
        """
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._read:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise Refused(f"no answer in {limit:g} s")
                found = os.read(self._answers, 65536)
                if not found:
                    raise Refused(f"failed: {self._last_line()}")
                self._read += found
        line, _, self._read = self._read.partition(b"\n")
        facts: dict[str, Any] = json.loads(line)
        if "refused" in facts:
            raise Refused(facts["refused"])
        return facts

    def peak_bytes(self) -> int | None:
        """The most memory that it has had; `None` without a /proc."""
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{self._popen.pid}/status")
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return None

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        self._popen.send_signal(number)

    def end(self) -> None:
        """Ends it, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        os.close(self._orders)
        os.close(self._answers)

    def _last_line(self) -> str:
        self._popen.wait()
        lines = self._log.read_text(errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return said[-1].strip()[:200] if said else "it said nothing"
