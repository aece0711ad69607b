"""All tasks join, or each says what is wrong: real processes, real TCP."""

import contextlib
import json
import socket
import struct
import time

from tests.plugins.control_plane.tasks import refusals


def test_all_tasks_join_and_the_late_one_is_waited_for(cluster):
    group = cluster(2, chief=1, ps=1)
    tasks = group.start("worker 1", "ps 0", "chief 0")
    group.connect().close()
    time.sleep(0.5)
    assert all(task.process.poll() is None for task in tasks)
    tasks += group.start("worker 0")
    names = ("worker 1", "ps 0", "chief 0", "worker 0")
    for task, name in zip(tasks, names, strict=True):
        assert task.started() == [name, group.jobs]
        assert task.close() == 0


def test_missing_tasks_are_named_by_all(cluster):
    limit = {"start_seconds": 1.0}
    one, first = cluster(3, options=limit), cluster(2, options=limit)
    tasks = [*one.start_workers(0, 2), *first.start_workers(1)]
    found = [task.answer() for task in tasks]
    assert [code for code, _, _ in found] == [75] * 3
    assert all(seconds < 15 for _, _, seconds in found)
    # The others may have come a little later.
    assert found[0][2] > 0.9
    missing = "peers missing after 1 s: "
    for _, text, _ in found[:2]:
        assert text == f"{missing}{one.label('worker 1')}"
    text = found[2][1]
    assert text.startswith(f"{missing}{first.label('worker 0')}")
    assert "Connect call failed" in text or "refused" in text


def test_a_host_that_no_one_knows_is_named_before_tensorflow_waits(cluster):
    """TensorFlow would wait for it without a message."""
    group = cluster(2, options={"start_seconds": 2.0})
    group.jobs["worker"][1] = "no-such-host.invalid:2222"
    for task in group.start_workers(0, 1):
        code, text, _ = task.answer()
        assert code == 75
        assert "cannot resolve the host of worker 1 (no-such-host.inv" in text


def test_different_facts_name_the_worker_and_the_fact(cluster):
    group = cluster(3)
    facts = {"keras": "3.15.1", "config": "abc"}
    tasks = [
        *group.start_workers(0, 1, facts=facts),
        *group.start_workers(2, facts=facts | {"config": "xyz"}),
    ]
    for text in refusals(tasks):
        assert text.startswith(
            'The tasks differ in config: "abc" on worker 0'
        ), text
        assert '"xyz" on worker 2' in text
        assert "keras" not in text


def test_two_processes_with_one_task_index_are_named(cluster):
    # Worker 2 never joins, and the others do not wait longer for it.
    group = cluster(3, options={"start_seconds": 4.0})
    tasks = group.start_workers(0, 1)
    group.connect().close()
    time.sleep(1.0)
    tasks += group.start_workers(1)
    for text in refusals(tasks):
        assert "Two processes claim to be worker 1" in text


def garbage(group):
    """Connections of other programs, which stay open."""
    linger = struct.pack("ii", 1, 0)
    for text in (
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(256)) * 100 + b"\n",
        b'{"join": 7, "tasks": [], "facts": 1}\n',
        b'{"join": "worker 1", "id": "x", "tasks": {}, "facts": {}}\n',
        b"[" * 100_000 + b"\n",
        b"x" * (1 << 21),
        b"null\n1\n",
    ):
        connection = group.connect()
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.send(text)
        yield connection
    reset = group.connect()
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    reset.sendall(b'{"join": "wor')
    reset.close()


def test_other_programs_do_no_harm_before_and_during_a_run(cluster):
    group = cluster(2)
    (first,) = group.start_workers(0)
    before = list(garbage(group))
    (second,) = group.start_workers(1)
    for task in (first, second):
        task.started()
    during = list(garbage(group))
    time.sleep(1.0)
    for task in (first, second):
        task.send("barrier", {}, 20.0)
    for task in (first, second):
        assert task.answer()[:2] == [0, None]
        assert task.call("state") == [0, [None, None, 0]]
    for connection in (*before, *during):
        connection.close()


def test_a_task_without_the_secret_does_not_count(cluster):
    group = cluster(2, secret="a secret", options={"start_seconds": 3.0})
    (first,) = group.start_workers(0)
    with group.connect() as connection, connection.makefile() as lines:
        assert "challenge" in next(lines)
        hello = {"join": "worker 1", "id": "x", "tasks": {}, "facts": {}}
        for proof in ({}, {"proof": ""}, {"proof": 1}, {"proof": "0" * 64}):
            # Not all of them, if it is closed after the first.
            with contextlib.suppress(ConnectionError):
                connection.sendall(json.dumps(hello | proof).encode() + b"\n")
        # A reset, if it is closed before it has read the last of them.
        with contextlib.suppress(ConnectionError):
            assert next(lines, "") == ""
    group.environ["TRAINER_COORDINATOR_SECRET"] = "another one"
    (second,) = group.start_workers(1)
    for task, name in ((first, "worker 1"), (second, "worker 0")):
        code, text, _ = task.answer()
        assert code == 75
        assert text.startswith(f"peers missing after 3 s: {group.label(name)}")
