"""A real Slurm: two nodes of two GPUs each, all of them on this machine.

The daemons of both nodes run here, with files and a network of their own; a GPU
is a device file that nobody reads. What `srun` sets for a task is Slurm's own.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest

from tests import helpers
from tests.conftest import ROOT
from tests.faults.runs import free_ports
from tests.plugins.strategies.gpus_of_slurm import taken
from trainer.plugin_api import storage

pytestmark = pytest.mark.long

GPU_SCRIPT = pathlib.Path(__file__).with_name("gpu_script.py")
FUZZ = ROOT / "tests" / "fuzz"
SECONDS = 240
CONF = """
ClusterName=test
SlurmctldHost={host}({n1})
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmUser=root
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none
NodeName=n1 NodeHostname={host} NodeAddr={n1} Port={node} CPUs=2 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr={n2} Port={node} CPUs=2 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# For networks that are tried out; nobody's own.
ADDRESSES = {"n1": "198.18.77.1", "n2": "198.18.77.2"}
# Slurm takes character devices only, and reads nothing of them.
SETTING_UP = """
set -e
mkdir {home}/state
head -c 1024 /dev/urandom > {home}/key
chmod 400 {home}/key
mknod {home}/gpu0 c 1 3
mknod {home}/gpu1 c 1 3
ip link add {link}1 type veth peer name {link}2
ip addr add {n1}/24 dev {link}1
ip link set {link}1 up
"""
# The tasks reach each other by the names of their nodes, and listen on equal
# ports; so the second node has a network of its own.
IN_NODE = """
mount --bind {home}/hosts /etc/hosts
if [ {node} = n2 ]; then
    until ip link show dev {link}2 > {home}/shown; do sleep 0.1; done
    ip addr add {n2}/24 dev {link}2
    ip link set {link}2 up
    ip link set lo up
fi
exec slurmd -D -N {node}
"""


@pytest.fixture(scope="module")
def srun():
    """Starts a step on both nodes; each task's exit code and what it wrote."""
    for name in ("slurmctld", "slurmd", "munged", "srun", "unshare", "ip"):
        if shutil.which(name) is None:
            pytest.skip(f"needs Slurm and munge; there is no {name}")
    apart = ["unshare", "--mount", "--net", "true"]
    if os.geteuid() or subprocess.run(apart, capture_output=True).returncode:
        pytest.skip("needs root, and namespaces of its own")
    with contextlib.ExitStack() as stack:
        home = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm"))
        )
        environ = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
        # The tests set it, so that TensorFlow looks for no GPU.
        del environ["CUDA_VISIBLE_DEVICES"]
        _start_daemons(home, environ, stack)

        def run(*command, options=(), **more):
            command = [sys.executable, *map(str, command)]
            done = subprocess.run(
                ["srun", "--nodes=2", *options, *command],
                env={**environ, **more},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            return done.returncode, done.stdout, done.stderr

        yield run


def _start_daemons(home, environ, stack):
    # Whoever connects to munge must be able to look into its folder.
    home.chmod(0o755)
    controller, node = free_ports(2)
    names = {
        **ADDRESSES,
        "home": home,
        "link": f"s{os.getpid()}x",
        "host": socket.gethostname().partition(".")[0],
        "controller": controller,
        "node": node,
    }
    (home / "slurm.conf").write_text(CONF.format(**names))
    (home / "gres.conf").write_text(f"Name=gpu File={home}/gpu[0-1]\n")
    hosts = pathlib.Path("/etc/hosts").read_text()
    lines = [f"{address} {name}" for name, address in ADDRESSES.items()]
    (home / "hosts").write_text("\n".join([hosts, *lines, ""]))
    script = SETTING_UP.format(**names)
    subprocess.run(["bash", "-c", script], check=True)
    log = stack.enter_context((home / "log").open("wb"))

    def start(*command):
        daemon = subprocess.Popen(
            command, env=environ, stdout=log, stderr=log, stdin=log
        )
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)
        return daemon

    munge = {
        "socket": "munge.socket",
        "key-file": "key",
        "pid-file": "munge.pid",
    }
    munge["seed-file"] = "munge.seed"
    files = [f"--{what}={home / name}" for what, name in munge.items()]
    start("munged", "--foreground", "--force", *files)
    start("slurmctld", "-D")
    one, two = (IN_NODE.format(**{**names, "node": name}) for name in ADDRESSES)
    start("unshare", "--mount", "sh", "-ec", one)
    other = start("unshare", "--mount", "--net", "sh", "-ec", two)

    def wait_until(happened):
        deadline = time.monotonic() + 60
        while not happened():
            said = (home / "log").read_text(errors="replace")
            assert time.monotonic() < deadline, said[-3000:]
            time.sleep(0.1)

    wait_until((home / "shown").exists)
    move = ["ip", "link", "set", f"{names['link']}2", "netns", str(other.pid)]
    subprocess.run(move, check=True)
    ask = ["sinfo", "--noheader", "--format=%t %D"]
    wait_until(lambda: _output(ask, environ).split() == ["idle", "2"])


def _output(command, environ):
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    return done.stdout


WRITE_ENVIRON = """
import json, os, sys
with open(f"{sys.argv[1]}/{os.environ['SLURM_PROCID']}", "w") as file:
    json.dump(dict(os.environ), file)
"""


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        # Slurm names both for each of them.
        ("--gpus-per-node=2", 4),
        ("--gpus-per-node=2 --distribution=cyclic", 4),
        ("--gpus-per-node=2 --gpu-bind=closest", 4),
        ("--gpus-per-node=2", 2),
        # It names one for each.
        ("--gpus-per-task=1", 4),
        ("--gpus-per-node=2 --gpu-bind=single:1", 4),
        ("--gpus-per-node=2 --gpu-bind=map_gpu:0,1", 4),
    ],
)
def test_no_gpu_is_used_twice(srun, options, tasks, monkeypatch, tmp_path):
    options = [f"--ntasks={tasks}", *options.split()]
    code, _, err = srun("-c", WRITE_ENVIRON, tmp_path, options=options)
    assert code == 0, err
    environs = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(environs) == tasks
    used = []
    for environ in environs:
        node = environ["SLURMD_NODENAME"]
        used += [(node, gpu) for gpu in taken(environ, monkeypatch)]
    assert sorted(used) == [(n, i) for n in ("n1", "n2") for i in ("0", "1")]


def test_tensorflow_sees_one_cluster_of_four_gpus(srun):
    options = ["--ntasks=4", "--gpus-per-task=1"]
    code, out, err = srun(
        GPU_SCRIPT, "multi_worker_mirrored", "named", options=options
    )
    assert code == 0, err
    found = [json.loads(line) for line in out.splitlines()]
    assert {one.get("replicas") for one in found} == {4}, out
    places = [f"/job:worker/replica:0/task:{i}/device:GPU:0" for i in range(4)]
    assert sorted(one["devices"][0] for one in found) == places


def command(model_dir, *flags):
    given = [f"--gin_file={FUZZ / 'fuzz.gin'}", f"--model_dir={model_dir}"]
    longer = "--gin.MultiWorkerMirrored.start_seconds=120.0"
    return ["-m", "trainer", *given, longer, *flags]


def test_a_command_line_is_one_cluster(srun, tmp_path):
    path = os.pathsep.join([str(ROOT), str(FUZZ)])
    code, _, err = srun(
        *command(tmp_path / "four"), options=["--ntasks=4"], PYTHONPATH=path
    )
    assert code == 0, err
    subprocess.run(
        [sys.executable, *command(tmp_path / "one", "--strategy=default")],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        cwd=ROOT,
    )
    said = json.loads((tmp_path / "four" / "run.json").read_text())
    workers = said["cluster"]["cluster"]["jobs"]["worker"]
    assert [one.partition(":")[0] for one in workers] == [
        "n1",
        "n1",
        "n2",
        "n2",
    ]
    four, one = (
        storage.load_newest(str(tmp_path / name / "checkpoints"))
        for name in ("four", "one")
    )
    found, expected = map(helpers.as_numpy, (four, one))
    for name, value in expected.items():
        own = found[name]
        # Sums are kept by replica.
        if own.shape != value.shape:
            own, value = own.sum(0), value.sum(0)
        np.testing.assert_allclose(own, value, rtol=1e-5, atol=1e-5)


def test_one_description_for_four_tasks_is_refused(srun, tmp_path):
    task = {"type": "worker", "index": 0}
    alone = {"cluster": {"worker": ["localhost:2222"]}, "task": task}
    code, _, err = srun(
        *command(tmp_path / "run"),
        options=["--ntasks=4", "--kill-on-bad-exit=0"],
        PYTHONPATH=os.pathsep.join([str(ROOT), str(FUZZ)]),
        TF_CONFIG=json.dumps(alone),
    )
    assert code == 2
    assert err.count("error: TF_CONFIG") == 4, err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "checkpoints").exists()
