"""Tasks that come late, not at all, or are strangers, over real TCP."""

import contextlib
import json
import socket
import threading
import time

import pytest

from tests.plugins.control_plane.meetings import wait_for_port
from tests.plugins.control_plane.threads import in_threads, workers
from trainer import StartAgain
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane import open_channel as module
from trainer_plugins.control_plane.channel import Lifeline
from trainer_plugins.control_plane.open_channel import open_lifeline


def opening(cluster, **options):
    return lambda: open_lifeline(cluster, jobs=("worker",), **options)


@contextlib.contextmanager
def ending(lifelines):
    """The lifelines, if they are that; they end at last."""
    assert all(isinstance(one, Lifeline) for one in lifelines), lifelines
    try:
        yield lifelines
    finally:
        for one in lifelines:
            one.leave()


def test_who_does_not_come_is_named_by_all():
    """The first task beats meanwhile: nobody calls it silent."""
    # The tasks have come without worker 0, and are numbered anew.
    first, second, third = workers(3, away=1)
    options = {"seconds": 3.5, "silence_seconds": 2.5}
    since = time.monotonic()
    error, told = in_threads(
        opening(first, **options), opening(second, **options)
    )
    missing = f"no line to worker 3 ({third.address})"
    said = f"worker 1 ({first.address}) ended: {missing}"
    assert [type(e) for e in (error, told)] == [StartAgain, StartAgain]
    assert [str(e) for e in (error, told)] == [missing, said]
    assert time.monotonic() - since < 12


def test_silent_strangers_hold_nobody_up():
    first, second = workers(2)
    strangers = []

    def come_late():
        for _ in range(3):
            strangers.append(wait_for_port(first.address))
        strangers[0].sendall(b"{")
        return opening(second)()

    since = time.monotonic()
    found = in_threads(opening(first), come_late)
    assert time.monotonic() - since < 4
    with ending(found):
        time.sleep(1.2)
        assert [one.over for one in found] == [None, None]
    for one in strangers:
        one.close()


def test_who_has_given_up_meanwhile_is_not_taken_for_there():
    first, second = workers(2)

    def come_twice():
        with wait_for_port(first.address) as impatient:
            impatient.sendall(b'{"name": "worker 1"}\n')
        return opening(second)()

    with ending(in_threads(opening(first), come_twice)) as found:
        time.sleep(0.3)
        assert [one.over for one in found] == [None, None]


def test_a_name_server_may_fail_for_a_moment(monkeypatch):
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
    addresses = ["nobody.invalid:1", "127.0.0.1:2"]
    cluster = Cluster({"worker": addresses}, "worker", 1, "test")
    with pytest.raises(StartAgain, match="no line to worker 0 .nobody.invalid"):
        opening(cluster, seconds=0.2)()


def test_what_follows_the_answer_at_once_is_heard():
    _, second = workers(2)
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        cluster = Cluster(
            {"worker": [address, second.address]}, "worker", 1, "test"
        )
        connections = []

        def answer():
            line, _ = door.accept()
            connections.append(line)
            said = [{"name": "worker 0"}, {"all": True}, {"facts": 1}]
            line.sendall("".join(json.dumps(s) + "\n" for s in said).encode())

        threading.Thread(target=answer, daemon=True).start()
        with ending([opening(cluster, seconds=2)()]) as [member]:
            assert member.hear("worker 0", 5) == {"facts": 1}
            # Otherwise its end takes a moment to be read.
            connections[0].close()
