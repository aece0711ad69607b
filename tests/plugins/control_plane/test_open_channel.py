"""Tasks that connect late or not at all, and other programs, over TCP."""

import contextlib
import json
import socket
import threading
import time

import pytest

from tests.plugins.control_plane.rendezvous_tasks import wait_for_port
from tests.plugins.control_plane.threads import in_threads, workers
from trainer import StartAgain
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane import open_channel as module
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.open_channel import open_channel


def opening(cluster, **options):
    return lambda: open_channel(cluster, jobs=("worker",), **options)


@contextlib.contextmanager
def ending(channels):
    """Checks that these are channels, and closes them at the end."""
    assert all(isinstance(one, Channel) for one in channels), channels
    try:
        yield channels
    finally:
        for one in channels:
            one.leave()


def test_all_tasks_name_the_one_that_does_not_connect():
    """The first task sends heartbeats meanwhile: none reports it silent."""
    # Worker 0 is absent, so the tasks are renumbered.
    first, second, third = workers(3, away=1)
    options = {"seconds": 3.5, "silence_seconds": 2.5}
    since = time.monotonic()
    error, received = in_threads(
        opening(first, **options), opening(second, **options)
    )
    missing = f"no connection to worker 3 ({third.address})"
    sent = f"worker 1 ({first.address}) ended: {missing}"
    assert [type(e) for e in (error, received)] == [StartAgain, StartAgain]
    assert [str(e) for e in (error, received)] == [missing, sent]
    assert time.monotonic() - since < 12


def test_silent_connections_do_not_delay_the_tasks():
    first, second = workers(2)
    silent = []

    def come_late():
        for _ in range(3):
            silent.append(wait_for_port(first.address))
        silent[0].sendall(b"{")
        return opening(second)()

    since = time.monotonic()
    found = in_threads(opening(first), come_late)
    assert time.monotonic() - since < 4
    with ending(found):
        time.sleep(1.2)
        assert [one.end_reason for one in found] == [None, None]
    for one in silent:
        one.close()


def test_a_task_that_has_given_up_does_not_count_as_connected():
    first, second = workers(2)

    def come_twice():
        with wait_for_port(first.address) as impatient:
            impatient.sendall(b'{"name": "worker 1"}\n')
        return opening(second)()

    with ending(in_threads(opening(first), come_twice)) as found:
        time.sleep(0.3)
        assert [one.end_reason for one in found] == [None, None]


def test_a_name_server_may_fail_temporarily(monkeypatch):
    first, second = workers(2)
    failures = [socket.gaierror(socket.EAI_AGAIN, "try again")] * 3
    look_up = module.look_up

    def fail_at_first(address, *, seconds):
        if failures:
            raise failures.pop()
        return look_up(address, seconds=seconds)

    monkeypatch.setattr(module, "look_up", fail_at_first)
    with ending(in_threads(opening(first), opening(second))):
        assert not failures


def test_a_first_task_without_an_address_is_named():
    addresses = ["missing.invalid:1", "127.0.0.1:2"]
    cluster = Cluster({"worker": addresses}, "worker", 1, "test")
    with pytest.raises(
        StartAgain, match="no connection to worker 0 .missing.invalid"
    ):
        opening(cluster, seconds=0.2)()


def test_messages_right_after_the_answer_are_received():
    _, second = workers(2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        cluster = Cluster(
            {"worker": [address, second.address]}, "worker", 1, "test"
        )
        connections = []

        def answer():
            connection, _ = listener.accept()
            connections.append(connection)
            sent = [{"name": "worker 0"}, {"all": True}, {"facts": 1}]
            text = "".join(json.dumps(message) + "\n" for message in sent)
            connection.sendall(text.encode())

        threading.Thread(target=answer, daemon=True).start()
        with ending([opening(cluster, seconds=2)()]) as [member]:
            assert member.receive("worker 0", 5) == {"facts": 1}
            # Otherwise its end takes a moment to be read.
            connections[0].close()
