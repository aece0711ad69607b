import json
import subprocess
import sys

import pytest

from trainer import UserError
from trainer.strategy.cluster import kubernetes, slurm, tf_config
from trainer.strategy.cluster.resolve import resolve_cluster
from trainer.strategy.cluster.spec import Cluster

FLAGS = "The flags of the cluster"
TWO = {"worker": ["a:1", "b:1"]}


def tf_config_of(cluster, job="worker", index=0, **more):
    task = {"type": job, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **more})}


def in_slurm(rank, *, nodes="n[2,10-11]", counts="2,1(x2)", total=4, **more):
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "TRAINER_PORT": "5000",
        **more,
    }


def in_pod(name, workers=3, **more):
    return {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "HOSTNAME": name,
        "TRAINER_NUM_WORKERS": str(workers),
        "TRAINER_SERVICE": "peers",
        **more,
    }


def message_of(function, *args, **kwargs):
    with pytest.raises(UserError) as error:
        function(*args, **kwargs)
    text = str(error.value)
    assert text.count("\n") < 3
    return text


# TF_CONFIG


def test_tf_config_is_read_as_tensorflow_reads_it():
    found = tf_config.resolve(
        tf_config_of(
            {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]},
            "worker",
            1,
        )
    )
    assert (found.name, found.address) == ("worker 1", "b:1")
    assert found.source == "TF_CONFIG"


def test_a_tf_config_without_cluster_is_none():
    alone = {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'}
    assert resolve_cluster(environ=alone) is None


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"TF_CONFIG": "{'a'"}, ["Invalid JSON"]),
        ({"TF_CONFIG": "[" * 100_000}, ["recursion limit"]),
        (tf_config_of(TWO, "wroker"), ["'wroker'", "'worker'"]),
        (tf_config_of(TWO, "worker", 2), ["worker 2", "0, 1"]),
        (tf_config_of(TWO, "worker", "9" * 5000), ["index:"]),
        (tf_config_of({"worker": ["a:1", "a:1"]}), ["worker 0 and worker 1"]),
        (tf_config_of({"worker": ["a"]}), ["'a'", "host:port"]),
        (tf_config_of({"worker": ["http://a:1"]}), ["'http://a:1'", "host:po"]),
        (tf_config_of({"worker": ["::1:2222"]}), ["'::1:2222'", "[fd00::2]:2"]),
        (tf_config_of({"worker": ["a:\u0661\u0662"]}), ["host:port"]),
        (tf_config_of({"worker": ["a\0:1"]}), ["'a\\x00:1'", "host:port"]),
        (tf_config_of({"worker": ["a b:1"]}), ["'a b:1'", "host:port"]),
        (
            tf_config_of({"worker": ["[::1]:1", "[0:0::1]:1"]}),
            ["worker 0 and worker 1"],
        ),
        (tf_config_of({"worker": ["a.:1", "A:1"]}), ["worker 0 and worker 1"]),
        (tf_config_of({"worker": [7]}), ["worker: 0:", "valid string"]),
        ({"TF_CONFIG": json.dumps({"cluster": TWO})}, ["which task"]),
    ],
)
def test_mistakes_in_tf_config(environ, parts):
    text = message_of(tf_config.resolve, environ)
    assert all(part in text for part in ["TF_CONFIG", *parts]), text


# Flags


def test_flags_without_parameter_servers():
    found = resolve_cluster(worker_hosts="a:1, b:1", task_index=1)
    assert found == Cluster(TWO, "worker", 1, FLAGS)
    chief = resolve_cluster(worker_hosts=["a:1", "b:1"], task_type="chief")
    assert chief == Cluster(TWO, "worker", 0, FLAGS)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"task_index": 0}, ["--worker_hosts"]),
        ({"worker_hosts": "a:1"}, ["--task_index is missing"]),
        (
            {"worker_hosts": "a:1", "ps_hosts": "p:1", "task_index": 0},
            ["two hosts"],
        ),
        (
            {"worker_hosts": "a:1", "task_type": "wrk", "task_index": 0},
            ["'wrk'", "'worker'"],
        ),
        (
            {"worker_hosts": "a:1,b:1", "ps_hosts": "b:1", "task_index": 0},
            ["worker 0 and ps 0", "b:1"],
        ),
    ],
)
def test_mistakes_in_flags(given, parts):
    text = message_of(resolve_cluster, **given)
    assert all(part in text for part in parts), text


# Slurm


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n[008-010],m", ["n008", "n009", "n010", "m"]),
        ("a-[1,3]-ib,b.x[7]", ["a-1-ib", "a-3-ib", "b.x7"]),
    ],
)
def test_node_lists(text, nodes):
    assert slurm.expand_nodes(text) == nodes


def test_task_counts():
    assert slurm.expand_counts("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "2(3)", "x", "2,", "0", "2(x0)", "1(x9999999999)"):
        assert repr(text) in message_of(slurm.expand_counts, text)


def test_ranks_follow_the_node_list():
    found = [slurm.resolve(in_slurm(rank)) for rank in range(4)]
    expected = ["n2:5000", "n2:5001", "n10:5000", "n11:5000"]
    assert [one.address for one in found] == expected
    assert found[3] == Cluster({"worker": expected}, "worker", 3, "Slurm")


def port_of(**environ):
    given = in_slurm(0, **environ)
    del given["TRAINER_PORT"]
    return int(slurm.resolve(given).address.split(":")[1])


def test_jobs_and_steps_that_share_a_node_have_their_own_ports():
    ports = {
        port_of(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step))
        for job in range(4000, 4090)
        for step in range(4)
    }
    assert len(ports) == 90 * 4
    ordered = sorted(ports)
    gaps = [b - a for a, b in zip(ordered, ordered[1:], strict=False)]
    assert min(gaps) >= 32
    assert min(ports) > 1024
    assert max(ports) + 32 < 32768


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        (in_slurm(4), ["worker 4", "0, 1, 2, 3"]),
        (in_slurm(0, nodes=""), ["SLURM_STEP_NODELIST"]),
        (in_slurm(0, SLURMD_NODENAME="n11"), ["node n11", "of n2"]),
        (in_slurm(0, TRAINER_PORT="65535"), ["65534", "TRAINER_PORT"]),
        (in_slurm("x"), ["SLURM_PROCID='x'"]),
    ],
)
def test_mistakes_in_slurm(environ, parts):
    text = message_of(slurm.resolve, environ)
    assert all(part in text for part in parts), text


# Kubernetes


def test_a_stateful_set_with_parameter_servers():
    found = [
        kubernetes.resolve(
            in_pod(f"t-{i}", 2, TRAINER_NUM_PS="1", TRAINER_PORT="80")
        )
        for i in range(4)
    ]
    names = [one.name for one in found]
    assert names == ["chief 0", "ps 0", "worker 0", "worker 1"]
    assert found[0].jobs["worker"] == ["t-2.peers:80", "t-3.peers:80"]
    wanted = kubernetes.resolve(in_pod("t-3", 2), ps=True)
    assert (wanted.name, wanted.address) == ("worker 1", "t-3.peers:2222")


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        (in_pod("digits"), ["'digits'", "StatefulSet"]),
        (in_pod("a-0", TRAINER_SERVICE=""), ["TRAINER_SERVICE is not set"]),
        (in_pod("a-0", "999999999"), ["='999999999'", "from 1 to 100000"]),
        (in_pod("a-0", TRAINER_NUM_PS="999999999"), ["0 to 100000"]),
    ],
)
def test_mistakes_in_kubernetes(environ, parts):
    text = message_of(kubernetes.resolve, environ)
    assert all(part in text for part in parts), text


# All together


def test_the_order_in_which_they_are_asked():
    everywhere = {
        **tf_config_of({"worker": ["a:1", "b:1", "c:1", "d:1"]}),
        **in_slurm(0),
        **in_pod("a-0", 4),
    }
    given = {"worker_hosts": "x:1,y:1,z:1,v:1", "task_index": 0}
    sources = [resolve_cluster(environ=everywhere, **given).source]
    for variable in ("TF_CONFIG", "SLURM_PROCID", "TRAINER_SERVICE"):
        sources.append(resolve_cluster(environ=everywhere).source)
        del everywhere[variable]
    del everywhere["TRAINER_NUM_WORKERS"]
    assert sources == [FLAGS, "TF_CONFIG", "Slurm", "Kubernetes"]
    assert resolve_cluster(environ=everywhere) is None


def test_no_tensorflow_is_needed(plain_starts):
    program = (
        "import sys, trainer.strategy.cluster.resolve,"
        "trainer_plugins.control_plane.agent;"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
