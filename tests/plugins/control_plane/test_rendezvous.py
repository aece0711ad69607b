import json
import signal
import socket
import struct
import time

from tests.plugins.control_plane.rendezvous_tasks import (
    Task,
    cluster_of,
    open_gates,
    wait_for_port,
)


def test_all_tasks_meet_and_the_late_one_is_waited_for():
    jobs = cluster_of(2, chief=1, ps=1)
    tasks = [
        Task(jobs, 1),
        Task(jobs, 0, "ps"),
        Task(jobs, 0, "chief"),
    ]
    wait_for_port(jobs["chief"][0]).close()
    time.sleep(0.5)
    assert all(task.process.poll() is None for task in tasks)
    tasks.append(Task(jobs, 0))
    assert [task.result()[:2] for task in tasks] == [(0, "met")] * 4


def test_an_evaluator_and_a_single_task_do_not_wait():
    jobs = cluster_of(1)
    for task in (Task(jobs, 0), Task(jobs, 0, "evaluator")):
        code, text, seconds = task.result()
        assert (code, text) == (0, "met")
        assert seconds < 5


def test_missing_tasks_are_named():
    """By all tasks; also a leader that is absent or another program."""
    one, leader, unknown, other = (cluster_of(n) for n in (3, 2, 2, 2))
    unknown["worker"][0] = "no-such-host.invalid:2222"
    host, port = other["worker"][0].split(":")
    given = {"timeout": 1, "gate": True}
    with socket.create_server((host, int(port))):
        tasks = [
            *(Task(one, i, **given) for i in (0, 2)),
            *(Task(jobs, 1, **given) for jobs in (leader, unknown, other)),
        ]
        found = [task.result() for task in open_gates(tasks)]
    assert [code for code, _, _ in found] == [75] * 5
    assert all(0.9 < seconds < 15 for _, _, seconds in found)
    start = "peers missing after 1 s: worker"
    expected = f"{start} 1 ({one['worker'][1]})"
    assert [text for _, text, _ in found[:2]] == [expected] * 2
    texts = [text for _, text, _ in found[2:]]
    for text, jobs in zip(texts, (leader, unknown, other), strict=True):
        assert text.startswith(f"{start} 0 ({jobs['worker'][0]})")
    assert "another program answers there" in texts[2]


def test_different_facts_name_the_worker_and_the_fact():
    jobs = cluster_of(3)
    facts = {"keras": "3.15.1", "config": "abc"}
    tasks = [
        Task(jobs, 0, facts=facts),
        Task(jobs, 1, facts=facts),
        Task(jobs, 2, facts=facts | {"config": "xyz"}),
    ]
    for task in tasks:
        code, text, _ = task.result()
        assert code == 2
        assert text.startswith(
            'The tasks differ in config: "abc" on worker 0'
        ), text
        assert '"xyz" on worker 2' in text
        assert "keras" not in text


def test_a_different_cluster_is_named():
    jobs = cluster_of(2)
    other = {"worker": [*jobs["worker"], "127.0.0.1:9"]}
    leader, guest = Task(jobs, 0), Task(other, 1)
    for task in (leader, guest):
        code, text, _ = task.result()
        assert code == 2
        assert "worker 1 was given another cluster than worker 0" in text
        assert "127.0.0.1:9 for worker 1" in text


def test_two_processes_with_one_task_index_are_named():
    jobs = cluster_of(3)
    # Worker 2 never joins, and the leader does not wait longer for it.
    given = {"timeout": 1.5, "gate": True}
    leader, first = open_gates([Task(jobs, i, **given) for i in range(2)])
    # One machine cannot open the same port twice, so act as another machine.
    with wait_for_port(jobs["worker"][0]) as second:
        tasks = {
            f"worker {i}": address for i, address in enumerate(jobs["worker"])
        }
        hello = {"name": "worker 1", "tasks": tasks, "facts": {}}
        for message in ({"hello": hello}, {"join": True}):
            second.sendall(json.dumps(message).encode() + b"\n")
        second.settimeout(20)
        with second.makefile() as lines:
            assert any("error" in json.loads(line) for line in lines)
        second.shutdown(socket.SHUT_RDWR)
        for task in (leader, first):
            code, text, _ = task.result()
            assert code == 2
            assert "Two processes say that they are worker 1" in text


def test_a_task_that_reconnects_is_the_same_one():
    jobs = cluster_of(3)
    leader = Task(jobs, 0)
    address = jobs["worker"][0]
    tasks = {f"worker {i}": a for i, a in enumerate(jobs["worker"])}
    hello = {"name": "worker 1", "tasks": tasks, "facts": {}, "id": "a"}
    # As after a network failure: the leader has not noticed that the first
    # connection is broken.
    with wait_for_port(address) as first, wait_for_port(address) as second:
        for connection in (first, second):
            connection.settimeout(20)
            for message in ({"hello": hello}, {"join": True}):
                connection.sendall(json.dumps(message).encode() + b"\n")
            assert "leads" in connection.makefile().readline()
        # From now on the second connection counts.
        assert "error" not in first.makefile().read()
        last = Task(jobs, 2)
        with second.makefile() as lines:
            assert any("go" in json.loads(line) for line in lines)
        second.shutdown(socket.SHUT_RDWR)
        assert last.result()[:2] == (0, "met")
        assert leader.result()[:2] == (0, "met")


def test_other_programs_and_silent_connections_do_no_harm():
    jobs = cluster_of(2)
    leader = Task(jobs, 0)
    address = jobs["worker"][0]
    with (
        wait_for_port(address),
        wait_for_port(address) as http,
        wait_for_port(address) as binary,
        wait_for_port(address) as almost,
        wait_for_port(address) as reset,
    ):
        http.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        binary.sendall(bytes(range(256)) * 100 + b"\n")
        almost.sendall(b'{"hello": {"name": 7, "tasks": [], "facts": 1}}\n')
        linger = struct.pack("ii", 1, 0)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        reset.sendall(b'{"name": "wor')
        reset.close()
        time.sleep(0.2)
        assert leader.process.poll() is None
        assert Task(jobs, 1).result()[:2] == (0, "met")
        assert leader.result()[:2] == (0, "met")


def test_a_peer_that_dies_in_between_is_missed_and_may_come_back():
    jobs = cluster_of(3)
    leader = Task(jobs, 0, timeout=30)
    wait_for_port(jobs["worker"][0]).close()
    dying = Task(jobs, 1)
    wait_for_port(jobs["worker"][1]).close()
    time.sleep(0.5)
    dying.process.send_signal(signal.SIGKILL)
    dying.process.wait()
    (last,) = open_gates([Task(jobs, 2, gate=True)])
    time.sleep(0.5)
    assert leader.process.poll() is None
    again = Task(jobs, 1)
    for task in (leader, again, last):
        assert task.result()[:2] == (0, "met")


def test_a_leader_that_dies_in_between_may_come_back():
    jobs = cluster_of(3)
    first, guest = open_gates([Task(jobs, i, gate=True) for i in range(2)])
    wait_for_port(jobs["worker"][0]).close()
    time.sleep(0.5)
    first.process.kill()
    first.process.wait()
    again, last = Task(jobs, 0), Task(jobs, 2)
    for task in (guest, again, last):
        assert task.result()[:2] == (0, "met")


def test_another_program_on_its_own_port_is_named():
    jobs = cluster_of(2)
    host, port = jobs["worker"][1].split(":")
    with socket.create_server((host, int(port))):
        code, text, _ = Task(jobs, 1, timeout=0.3).result()
    assert code == 2
    assert f"worker 1: port {port} of this machine is in use" in text


def test_tensorflow_takes_the_ports_over_at_once():
    jobs = cluster_of(2)
    # Connections that the leader closes first linger on its port.
    tasks = [Task(jobs, 0, then="tensorflow")]
    with wait_for_port(jobs["worker"][0]) as other:
        other.sendall(b"no hello\n")
        assert other.recv(1) == b""
    tasks.append(Task(jobs, 1, then="tensorflow"))
    for task, address in zip(tasks, jobs["worker"], strict=True):
        port = address.split(":")[1]
        code, text, _ = task.result()
        assert code == 0
        assert text.endswith(f":{port}")
