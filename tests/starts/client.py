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
from _posixsubprocess import fork_exec as _plain_start

from tests.starts import fork_server

_SERVER = pathlib.Path(fork_server.__file__)
_PR_SET_CHILD_SUBREAPER = 36


class ForkedStarts:
    """Takes the place of `subprocess._fork_exec`.

    It starts its server late, unless this process came with one.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._requests = None
        given = os.environ.pop(fork_server.WANTS_A_SERVER, None)
        if given:
            self._requests = socket.socket(fileno=int(given))
            _adopt_orphans()
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
        _adopt_orphans()
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


def _adopt_orphans():
    """The server's orphans become children of this process."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@contextlib.contextmanager
def plain_starts():
    """Starts Python as ever meanwhile."""
    before = subprocess._fork_exec
    subprocess._fork_exec = _plain_start
    try:
        yield
    finally:
        subprocess._fork_exec = before


def offer_servers():
    """Gives each process that is forked from now on a server of its own.

    One made at once is a copy of what has imported TensorFlow; one made later
    has to import it again.
    """
    os.environ[fork_server.WANTS_A_SERVER] = "yes"


def install():
    """Makes `subprocess` start Python by forks from now on."""
    subprocess._fork_exec = ForkedStarts()
