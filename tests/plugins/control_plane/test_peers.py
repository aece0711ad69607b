"""What becomes of an error that may come from a lost peer."""

import socket
import time

import pytest
import tensorflow as tf

from tests.conformance.running import free_ports
from tests.plugins.control_plane.threads import in_threads
from trainer import StartAgain
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane.channel import Lifeline
from trainer_plugins.control_plane.peers import Peers


def peers_of(port):
    """Worker 0's, with worker 1 at a port; no line tells of it."""
    addresses = [f"127.0.0.1:{p}" for p in (*free_ports(1), port)]
    cluster = Cluster({"worker": addresses}, "worker", 0, "test")
    lifeline = Lifeline(cluster, dict(cluster.tasks("worker")), {})
    return Peers(cluster, lifeline, jobs=("worker",), limit_seconds=60)


def fail(peers):
    try:
        with peers.watched():
            raise tf.errors.InternalError(None, None, "a bug of ours")
    finally:
        peers.leave()


def test_an_error_is_ours_unless_a_peer_is_lost():
    (nobody,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        reached = peers_of(server.getsockname()[1])
        lost = peers_of(nobody)
        since = time.monotonic()
        ours, theirs = in_threads(lambda: fail(reached), lambda: fail(lost))
    # It was looked into once.
    assert time.monotonic() - since < 4
    with pytest.raises(tf.errors.InternalError, match="a bug of ours"):
        raise ours
    named = rf"lost worker 1 \(.*:{nobody}\)"
    with pytest.raises(StartAgain, match=named):
        raise theirs
