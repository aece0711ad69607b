"""Real sockets that answer, keep silent, or are closed."""

import contextlib
import socket
import threading


def closed_port():
    """A port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def answering(words):
    """A server that sends a reply to every client; `None` keeps silent.

    Yields:
        Its port.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    peers.append(peer)
                    if words is not None:
                        peer.sendall(words)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        for peer in peers:
            peer.close()
