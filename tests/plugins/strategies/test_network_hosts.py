"""Runs across three hosts, each with its own network and address."""

import json
import socket
import time

import pytest
import tensorflow as tf

from tests.plugins.strategies.network_hosts import (
    Hosts,
    Run,
    why_not,
)
from trainer.checkpoint import storage as saved
from trainer_plugins.control_plane.channel import disconnect

pytestmark = pytest.mark.long
WORKERS = [("worker", 0), ("worker", 1), ("worker", 2)]
SERVERS = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 2)]
ENDLESS = ["--train_steps=1000000", "--gin.run.eval_every=1000000"]


@pytest.fixture(scope="module")
def hosts():
    pytest.importorskip("sklearn")
    # Checked only when a test needs it, because it starts processes.
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Hosts(3) as made:
        yield made


@pytest.fixture
def run(hosts, tmp_path):
    made = []

    def make(placed, **options):
        made.append(Run(hosts, tmp_path, placed, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()
    for host in range(3):
        hosts.join(host)


def steps_and_splits(lines):
    return [(line["step"], line["split"]) for line in lines]


def updates(model_dir):
    """The optimizer updates in the newest checkpoint."""
    folder = max((model_dir / "checkpoints").iterdir())
    state = json.loads((folder / "state.json").read_text())
    group = "optimizer/optimizer"
    paths = [variable["path"] for variable in state["variables"][group]]
    [index] = [i for i, p in enumerate(paths) if p.endswith("/iteration")]
    reader = tf.train.load_checkpoint(str(folder / "arrays"))
    return int(reader.get_tensor(f"{group}/{index:04}"))


def checkpoints(model_dir):
    """The steps of a run's checkpoints."""
    found = saved.listing(str(model_dir / "checkpoints"))
    return [saved.step_of(path) for path in found]


def check_that_it_continues(group, strategy):
    """Restarts all tasks; they continue from the newest checkpoint."""
    newest = max(checkpoints(group.model_dir))
    steps = newest + 30
    group.start(strategy, f"--train_steps={steps}")
    group.wait_for_all()
    found = group.metrics()
    assert steps_and_splits(found)[-2:] == [(steps, "train"), (steps, "eval")]
    logged = [line["step"] for line in found if line["split"] == "train"]
    assert logged == sorted(set(logged))
    assert updates(group.model_dir) == steps


def test_a_host_that_is_cut_off_before_the_start_is_named(run, hosts):
    # All three start Python within this time of each other.
    limit = 8
    group = run(WORKERS)
    hosts.cut_off(2)
    group.start(
        "--strategy=multi_worker_mirrored",
        f"--gin.MultiWorkerMirrored.start_seconds={limit}",
    )
    since = {}
    for name in group.processes:
        # Its last message before it waits.
        group.wait_until(name, lambda n=name: "model_dir:" in group.log(n))
        since[name] = time.monotonic()
    for name in group.processes:
        assert group.wait(name, 60) == 75, group.log(name)[-3000:]
        # After the limit, only Python's shutdown takes time.
        assert time.monotonic() - since[name] < limit + 10
    missing = f"peers missing after {limit} s: "
    for name in ("worker 0", "worker 1"):
        said = group.start_again(name)
        assert said == f"{missing}worker 2 ({group.address('worker 2')})"
    said = group.start_again("worker 2")
    assert said.startswith(f"{missing}worker 0 ({group.address('worker 0')})")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_that_is_cut_off_in_the_middle_is_named(run, hosts, victim):
    group = run(WORKERS)
    group.start("--strategy=multi_worker_mirrored", *ENDLESS)
    group.wait_until("worker 0", lambda: checkpoints(group.model_dir))
    hosts.cut_off(victim)
    since = time.monotonic()
    lost = f"worker {victim}"
    for name in set(group.processes) - {lost}:
        assert group.wait(name, 30) == 75, group.log(name)[-3000:]
    assert time.monotonic() - since < 15
    assert group.wait(lost, 30) == 75, group.log(lost)[-3000:]
    for name in set(group.processes) - {lost}:
        said = group.start_again(name)
        assert said.startswith(f"lost {lost} ({group.address(lost)})")
    # The isolated host cannot know that it is the isolated one.
    assert group.start_again(lost).startswith("lost worker")
    hosts.join(victim)
    check_that_it_continues(group, "--strategy=multi_worker_mirrored")


def test_a_parameter_server_that_is_cut_off_is_named(run, hosts):
    group = run(SERVERS)
    group.start("--strategy=parameter_server", *ENDLESS)
    group.wait_until("chief 0", lambda: checkpoints(group.model_dir))
    hosts.cut_off(2)
    since = time.monotonic()
    for name in group.processes:
        assert group.wait(name, 60) == 75, group.log(name)[-3000:]
    assert time.monotonic() - since < 30
    lost = f"lost ps 0 ({group.address('ps 0')})"
    for name in ("chief 0", "worker 0", "worker 1"):
        assert group.start_again(name).startswith(lost)
    assert group.start_again("ps 0").startswith("lost chief 0 (")
    hosts.join(2)
    check_that_it_continues(group, "--strategy=parameter_server")


def test_a_worker_rejoins_after_a_cut(run, hosts):
    group = run(SERVERS)
    group.start("--strategy=parameter_server", *ENDLESS)
    group.wait_until("chief 0", lambda: len(group.metrics()) >= 3)
    hosts.cut_off(1)
    assert group.wait("worker 1", 60) == 75
    hosts.join(1)
    group.start("--strategy=parameter_server", *ENDLESS, only="worker 1")
    back = f"worker 1 ({group.address('worker 1')}) is back"
    group.wait_until("chief 0", lambda: back in group.log("chief 0"))
    reached = len(group.metrics())
    group.wait_until("chief 0", lambda: len(group.metrics()) > reached + 3)
    assert group.processes["worker 1"].poll() is None


def test_only_the_connections_to_that_address_are_shut_down():
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
        socket.create_connection(first.getsockname()) as ended,
        socket.create_connection(second.getsockname()) as kept,
    ):
        port = first.getsockname()[1]
        assert disconnect("::ffff:127.0.0.1", port) == 1
        assert ended.recv(1) == b""
        kept.send(b"x")
        peer, _ = second.accept()
        with peer:
            assert peer.recv(1) == b"x"
