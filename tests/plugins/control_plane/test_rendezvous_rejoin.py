import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.plugins.control_plane.rendezvous_tasks import (
    Task,
    cluster_of,
    wait_for_port,
)
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane.rendezvous import (
    add_to_run,
    connect_to_waiting,
)

LONG = 60.0


def chief_of(jobs):
    return Cluster(jobs, "chief" if "chief" in jobs else "worker", 0, "test")


def connect_until_answered(address, cluster):
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        connection = connect_to_waiting(address, cluster=cluster)
        if connection is not None:
            return connection
        time.sleep(0.02)
    raise AssertionError(f"no task waits at {address}")


@contextlib.contextmanager
def answering(address, reply):
    """Another program that sends this reply to every connection."""
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:
        connections = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    connections[-1].sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield


def test_a_waiting_task_rejoins_and_its_port_is_free():
    jobs = cluster_of(2, chief=1, ps=1)
    address = jobs["worker"][1]
    task = Task(jobs, 1, timeout=LONG, facts={"config": "a"}, then="tensorflow")
    with connect_until_answered(address, chief_of(jobs)) as connection:
        assert add_to_run(
            connection, cluster=chief_of(jobs), facts={"config": "a"}
        )
        connection.settimeout(LONG)
        assert connection.recv(6) == b"hello\n"
        # The connection stays open, on that port, while TensorFlow uses it.
        code, text, _ = task.result()
    assert code == 0
    assert text.endswith(":" + address.split(":")[1])


def test_a_task_that_differs_does_not_rejoin_and_says_why():
    jobs = cluster_of(1, chief=1, ps=1)
    task = Task(jobs, 0, timeout=LONG, facts={"config": "a"})
    connection = connect_until_answered(jobs["worker"][0], chief_of(jobs))
    assert not add_to_run(
        connection, cluster=chief_of(jobs), facts={"config": "b"}
    )
    assert connection.fileno() == -1
    code, text, _ = task.result()
    assert code == 2
    assert 'differ in config: "b" on chief 0; "a" on worker 0' in text


def test_a_task_that_dies_meanwhile_does_not_rejoin():
    jobs = cluster_of(1, chief=1, ps=1)
    task = Task(jobs, 0, timeout=LONG)
    connection = connect_until_answered(jobs["worker"][0], chief_of(jobs))
    task.kill()
    assert not add_to_run(connection, cluster=chief_of(jobs), facts={})
    assert connect_to_waiting(jobs["worker"][0], cluster=chief_of(jobs)) is None


def test_a_connection_that_is_closed_again_changes_nothing():
    jobs = cluster_of(1, chief=1)
    waiting = Task(jobs, 0, timeout=LONG)
    for _ in range(2):
        connect_until_answered(jobs["worker"][0], chief_of(jobs)).close()
    assert waiting.process.poll() is None
    # The chief was restarted, and leads a rendezvous of its own.
    chief = Task(jobs, 0, "chief", timeout=LONG)
    assert [t.result()[:2] for t in (waiting, chief)] == [(0, "met")] * 2


def test_an_absent_task_does_not_answer():
    jobs = cluster_of(1, chief=1)
    assert connect_to_waiting(jobs["worker"][0], cluster=chief_of(jobs)) is None
    assert (
        connect_to_waiting("10.0.0.1:80", cluster=chief_of(jobs), seconds=0.1)
        is None
    )


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(range(256)) * 100,
        b'{"waits": ["chief 0"]}\n',
        b'{"waits": "chief 0"}\n',
    ],
)
def test_another_program_that_answers_is_not_a_task(reply):
    jobs = cluster_of(1, chief=1)
    with answering(jobs["worker"][0], reply):
        start = time.monotonic()
        cluster = chief_of(jobs)
        assert (
            connect_to_waiting(jobs["worker"][0], cluster=cluster, seconds=0.3)
            is None
        )
        assert time.monotonic() - start < 20


def test_tensorflows_server_is_not_a_waiting_task():
    jobs = cluster_of(1, chief=1)
    script = (
        "import json, sys, time, tensorflow as tf\n"
        "tf.distribute.Server(json.loads(sys.argv[1]), job_name='worker',"
        " task_index=0, protocol='grpc')\n"
        "time.sleep(600)"
    )
    server = subprocess.Popen([sys.executable, "-c", script, json.dumps(jobs)])
    try:
        wait_for_port(jobs["worker"][0], seconds=LONG).close()
        assert (
            connect_to_waiting(jobs["worker"][0], cluster=chief_of(jobs))
            is None
        )
    finally:
        server.kill()
        server.wait()


def test_a_task_of_another_cluster_does_not_answer():
    jobs = cluster_of(2, chief=1)
    Task(jobs, 0, timeout=LONG).wait_until_it_waits()
    other = {**jobs, "worker": jobs["worker"][:1]}
    assert (
        connect_to_waiting(jobs["worker"][0], cluster=chief_of(other)) is None
    )
    connect_until_answered(jobs["worker"][0], chief_of(jobs)).close()


def test_a_task_that_returns_to_an_elastic_run_waits_for_it():
    jobs = cluster_of(2)
    given = {"min_workers": 1, "settle": 1, "timeout": 3}
    returned = Task(jobs, 0, **given)
    run = Cluster(jobs, "worker", 1, "test").among(["worker 1"])
    with connect_until_answered(jobs["worker"][0], run):
        # As long as the run goes on, no second one is formed.
        code, text, _ = returned.result()
    assert code == 75
    assert text.startswith("peers missing after 3 s: worker 1")
    assert text.endswith("a run goes on without this task")


def test_a_task_that_returns_joins_when_an_elastic_run_restarts():
    jobs = cluster_of(2)
    given = {"min_workers": 1, "settle": 1, "timeout": LONG}
    returned = Task(jobs, 0, **given)
    run = Cluster(jobs, "worker", 1, "test").among(["worker 1"])
    connect_until_answered(jobs["worker"][0], run).close()
    # Longer than the settle time.
    time.sleep(1.5)
    again = Task(jobs, 1, **given)
    assert [t.result()[:2] for t in (returned, again)] == [(0, "met")] * 2
