"""Thousands of connections of other programs change nothing."""

import contextlib
import pathlib
import socket
import threading
import time

import pytest

pytestmark = pytest.mark.long
COUNT = 4000
# At the same time; by default a process may not open many more files.
OPEN = 900
LINES = (
    b"",
    b"x" * 300_000,
    b"GET / HTTP/1.1\r\n\r\n",
    b'{"join": "worker 1"',
    b'{"join": "worker 1", "id": "1", "proof": ""}\n',
    b"[" * 200_000 + b"\n",
    b"\n" * 250_000,
    b'{"search": "worker 1", "id": "\\ud800", "proof": "\\ud800"}\n',
)


def megabytes(task):
    status = pathlib.Path(f"/proc/{task.process.pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def files(task):
    return len(list(pathlib.Path(f"/proc/{task.process.pid}/fd").iterdir()))


class Flood:
    """Connects again and again; leaves what it has opened half open."""

    def __init__(self, group):
        self._group = group
        self._open = []
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for one in self._open:
            one.close()

    def wait_for(self, count):
        deadline = time.monotonic() + 400
        while self.count < count:
            assert time.monotonic() < deadline, self.count
            time.sleep(0.02)

    def _run(self):
        address = ("127.0.0.1", self._group.port)
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(address, timeout=5)
                one.setblocking(False)
                self._open.append(one)
                self.count += 1
                one.send(LINES[self.count % len(LINES)])
            # The slow ones: a byte now and then.
            for one in self._open[-5:]:
                with contextlib.suppress(OSError):
                    one.send(b" ")
            if len(self._open) > OPEN:
                self._open.pop(0).close()


@pytest.mark.parametrize("secret", ["", "a secret"])
def test_a_flood_before_and_during_a_run_changes_nothing(cluster, secret):
    group = cluster(3, secret=secret, options={"start_seconds": 60.0})
    first, second = group.start_workers(0, 1)
    group.connect().close()
    before = megabytes(first)
    with Flood(group) as flood:
        flood.wait_for(COUNT)
        # One of the tasks has to come through.
        (third,) = group.start_workers(2)
        tasks = (first, second, third)
        for task in tasks:
            task.started()
        flood.wait_for(2 * COUNT)
        for task in tasks:
            task.send("barrier", {"step": 1}, 30.0)
        for task in tasks:
            assert task.answer()[:2] == [0, None]
        assert megabytes(first) < before + 60
        # Those that asyncio accepts at once, those that it is closing, and
        # those that may be unknown.
        assert files(first) < 2 * 512 + 64 + 3 + 50
        flood.wait_for(3 * COUNT)
        for task in tasks:
            assert task.call("state") == [0, [None, None, 0]]
    for task in tasks:
        task.send("barrier", {}, 20.0)
    for task in tasks:
        assert task.answer()[:2] == [0, None]
        assert task.close() == 0
