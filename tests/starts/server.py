"""Imports TensorFlow once, and forks a process for each request.

    python server.py FD

Started by `tests.starts.client`, with a socket as its standard input. A
request is a line of JSON, see `tests.starts.becoming.Start`, and the file
descriptors that the new process keeps; the answer is a line with its number.

TensorFlow must only be imported here: a runtime that has threads does not
survive a fork.
"""

import contextlib
import gc
import io
import os
import socket
import sys

with contextlib.redirect_stderr(io.StringIO()):
    import gin  # noqa: F401
    import keras  # noqa: F401
    import rich.progress  # noqa: F401
    import tensorflow as tf  # noqa: F401

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))


def main() -> None:
    """Serves until the other end of the socket is closed."""
    sys.path.insert(0, _ROOT)
    from tests.starts import becoming

    sys.path.remove(_ROOT)
    requests = socket.socket(fileno=int(sys.argv[1]))
    # What is here by now is shared by all children: no collection of theirs
    # shall touch it.
    gc.collect()
    gc.freeze()
    while True:
        received = becoming.receive(requests)
        if received is None:
            return
        start, kept = received
        number = becoming.fork_orphan(start, kept)
        for fd in kept:
            os.close(fd)
        requests.sendall(b"%d\n" % number)


if __name__ == "__main__":
    main()
