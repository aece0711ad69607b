"""Channels between tasks of this process, over real TCP."""

import json
import queue
import re
import signal
import socket
import time

import pytest

from tests.conformance.running import free_ports
from tests.plugins.control_plane.threads import in_threads, workers
from trainer import StartAgain, UserError
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane import channel as channel_module
from trainer_plugins.control_plane import departing
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.difference import compare
from trainer_plugins.control_plane.open_channel import open_channel

JOBS = ("worker",)


def connected():
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return ours, theirs


@pytest.fixture
def channels(monkeypatch):
    # All tasks share this process: one that disconnects from another would
    # cut the third one's connections as well.
    monkeypatch.setattr(channel_module, "disconnect_from", lambda address: None)
    made = []

    def make(count, *, away=0, **options):
        clusters = workers(count, away=away)
        made.extend(
            in_threads(
                *(
                    lambda c=c: open_channel(c, jobs=JOBS, **options)
                    for c in clusters
                )
            )
        )
        assert all(isinstance(one, Channel) for one in made), made
        return made

    yield make
    for one in made:
        one.leave()


def label(channel, number):
    """Such as `"worker 1 (127.0.0.1:5000)"`."""
    return channel.cluster.label(f"worker {number}")


def test_an_end_in_order_is_no_loss(channels):
    first, second = channels(2)
    first.leave()
    second.wait()


def test_all_tasks_name_the_first_cause(channels):
    first, second, third = channels(3)
    third.leave(ValueError("too bad\nand more"))
    expected = f"{label(first, 2)} ended: ValueError: too bad"
    for one in (first, second):
        assert one.wait_for_end(30) == expected
    # A task that leaves because of it does not hide it.
    second.leave(StartAgain(expected))
    with pytest.raises(StartAgain, match="too bad"):
        first.wait()


def test_a_broken_connection_is_a_loss(channels):
    first, second, third = channels(3)
    (connection,) = third._connections.current()
    connection._socket.shutdown(socket.SHUT_RDWR)
    expected = f"lost {label(first, 2)}"
    assert first.wait_for_end(30) == expected
    assert second.wait_for_end(30) == expected


def test_a_silent_task_is_lost_and_tasks_that_beat_are_not(channels):
    """The silent task's kernel still acknowledges; its process is frozen."""
    since = time.monotonic()
    two = channels(2, silence_seconds=2.5)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    cluster = Cluster({"worker": addresses}, "worker", 0, "test")
    ours, theirs = connected()
    with theirs:
        tasks = dict(cluster.tasks("worker"))
        one = Channel(cluster, tasks, {"worker 1": ours}, silence_seconds=2.5)
        said = one.wait_for_end(30)
        assert time.monotonic() - since > 2.4
        assert said.startswith(f"lost worker 1 ({addresses[1]}): silent")
        one.leave()
    time.sleep(max(0.0, since + 3.6 - time.monotonic()))
    assert [one.end_reason for one in two] == [None, None]


def test_a_waiting_call_ends_with_the_run(channels):
    first, second = channels(2)
    with first.waiting(60):
        pass
    second.leave(StartAgain("preempted"))
    assert first.wait_for_end(30).endswith("ended: preempted")
    with pytest.raises(StartAgain, match="ended: preempted"):
        first.waiting(60).__enter__()


def test_a_task_that_does_not_leave_is_given_up(channels, monkeypatch):
    """Its main thread is elsewhere, and may never come to wait again."""
    given_up = queue.Queue()
    monkeypatch.setattr(channel_module, "give_up", given_up.put)
    first, second, third = channels(3, leave_seconds=1.5)
    third.leave(StartAgain("out of patience"))
    said = first.wait_for_end(30)
    since = time.monotonic()
    assert said.endswith("ended: out of patience")
    second.leave(StartAgain(said))
    assert given_up.get(timeout=30) == said
    assert 1.0 < time.monotonic() - since < 15
    first.leave()


def test_all_tasks_report_facts_that_differ(channels):
    three = channels(3)
    facts = [{"step": 10}, {"step": 10}, {"step": 20}]

    def check(one, own):
        return lambda: compare(one, own, seconds=30)

    found = in_threads(*map(check, three, facts))
    assert all(isinstance(error, UserError) for error in found), found
    (text,) = {str(error) for error in found}
    assert "step: 10 on worker 0, worker 1; 20 on worker 2" in text
    same = in_threads(*(check(one, facts[0]) for one in three))
    assert same == [None, None, None]


def test_a_task_that_differs_goes_by_its_given_name(channels):
    """Where worker 0 is absent, the others are renumbered."""
    two = channels(2, away=1)
    found = in_threads(
        *(
            lambda i=i, one=one: compare(one, {"step": i}, seconds=30)
            for i, one in enumerate(two)
        )
    )
    for error in found:
        assert "step: 0 on worker 1; 1 on worker 2" in str(error)


@pytest.mark.parametrize("holds_state", [False, True])
def test_a_task_that_leaves_is_named(channels, monkeypatch, holds_state):
    for limit in ("_SAVING_SECONDS", "_WORKING_SECONDS"):
        monkeypatch.setattr(departing, limit, 0.2)
    first, second = channels(2)
    expected = f"{label(first, 1)}: SIGTERM"
    with departing.departing(second, holds_state=holds_state):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StartAgain, match=re.escape(expected)) as raised:
            second.wait()
    second.leave(raised.value)
    assert first.wait_for_end(30) == expected
    assert first.leave_reason == (expected if holds_state else None)


def test_a_task_that_misses_the_comparison_is_named(channels):
    first, _ = channels(2)
    with pytest.raises(
        StartAgain, match=r"worker 1 \(.*sent nothing for 0.3 s"
    ):
        compare(first, {}, seconds=0.3)


def test_a_spare_task_may_be_lost_and_rejoin(channels):
    lost = []
    first, second = channels(
        2, spare=["worker 1"], on_lost=lambda line, name: lost.append(name)
    )
    second.leave(ValueError("gone"))
    deadline = time.monotonic() + 30
    while not lost:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (lost, first.end_reason) == (["worker 1"], None)
    ours, theirs = connected()
    first.add("worker 1", ours)
    first.broadcast({"hello": 1})
    with theirs, theirs.makefile() as lines:
        said = [line for line in (next(lines), next(lines)) if line.strip()]
    assert json.loads(said[0]) == {"hello": 1}
