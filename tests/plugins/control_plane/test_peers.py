"""Errors that a lost peer may have caused."""

import socket
import time

import pytest
import tensorflow as tf

from tests.conformance.running import free_ports
from tests.plugins.control_plane.threads import in_threads
from trainer import StartAgain
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.peers import Peers


def peers_of(port):
    """Worker 0's peers; worker 1 is at a port, without a connection."""
    addresses = [f"127.0.0.1:{p}" for p in (*free_ports(1), port)]
    cluster = Cluster({"worker": addresses}, "worker", 0, "test")
    channel = Channel(cluster, dict(cluster.tasks("worker")), {})
    return Peers(cluster, channel, jobs=("worker",), limit_seconds=60)


def fail(peers):
    try:
        with peers.watched():
            raise tf.errors.InternalError(None, None, "a bug of ours")
    finally:
        peers.leave()


def test_an_error_is_ours_unless_a_peer_is_lost():
    (unused,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        reached = peers_of(server.getsockname()[1])
        lost = peers_of(unused)
        since = time.monotonic()
        ours, theirs = in_threads(lambda: fail(reached), lambda: fail(lost))
    # The peers were probed only once.
    assert time.monotonic() - since < 4
    with pytest.raises(tf.errors.InternalError, match="a bug of ours"):
        raise ours
    named = rf"lost worker 1 \(.*:{unused}\)"
    with pytest.raises(StartAgain, match=named):
        raise theirs
