"""Lets `subprocess` start Python through a fork server."""

import contextlib
import ctypes
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading

from tests.starts import fork_server

_SERVER = pathlib.Path(fork_server.__file__)
_PR_SET_CHILD_SUBREAPER = 36
_plain_start = subprocess._fork_exec


class ForkedStarts:
    """Takes the place of `subprocess._fork_exec`; starts its server late."""

    def __init__(self):
        self._lock = threading.Lock()
        self._requests = None
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self._environ = environ
        self._imported_with = fork_server.read_at_import(environ)

    def __call__(self, *given):
        found = None
        # What a parent wants to run in its child cannot be sent.
        if given[21] is None:
            found = fork_server.Start.of(given, self._imported_with)
        if found is None:
            return _plain_start(*given)
        with self._lock:
            if self._requests is None:
                self._start_server()
            return fork_server.send(self._requests, *found)

    def _start_server(self):
        # The server's orphans become children of this process.
        prctl = ctypes.CDLL(None).prctl
        assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        self._requests, other = socket.socketpair()
        with other, plain_starts(), tempfile.TemporaryFile() as said:
            # It ends when this process does, and the socket with it.
            self._server = subprocess.Popen(
                [sys.executable, str(_SERVER), str(other.fileno())],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[other.fileno()],
            )
            other.close()
            if self._requests.recv(16) != b"ready\n":
                said.seek(0)
                raise OSError(said.read().decode(errors="replace"))


@contextlib.contextmanager
def plain_starts():
    """Starts Python as ever meanwhile."""
    before = subprocess._fork_exec
    subprocess._fork_exec = _plain_start
    try:
        yield
    finally:
        subprocess._fork_exec = before


def install():
    """Makes `subprocess` start Python by forks from now on."""
    subprocess._fork_exec = ForkedStarts()
