import json
import pathlib
import socket
import sys
import tempfile

import pytest

from tests.trainer.strategy.cluster.real_slurm import RealSlurm, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
TASK = (sys.executable, str(pathlib.Path(__file__).with_name("slurm_task.py")))
HOST = socket.gethostname().split(".")[0]


@pytest.fixture(scope="module")
def slurm():
    # A socket's path may have 107 characters: pytest's folders are too deep.
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        RealSlurm(folder) as running,
    ):
        yield running


def results(done):
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(lines, key=lambda line: line[0]["task"])


def test_two_tasks_are_two_workers_that_meet(slurm):
    found = results(slurm.srun("-n2", "-O", *TASK))
    assert [description["task"] for description, _ in found] == [
        "worker 0",
        "worker 1",
    ]
    for description, met in found:
        assert met == "met"
        assert description["source"] == "Slurm"
        addresses = [a.split(":") for a in description["jobs"]["worker"]]
        assert [host for host, _ in addresses] == [HOST, HOST]
        assert int(addresses[1][1]) == int(addresses[0][1]) + 1


def test_two_jobs_have_different_ports(slurm):
    ports = [
        results(slurm.srun("-n2", "-O", *TASK))[0][0]["jobs"]["worker"][0]
        for _ in range(2)
    ]
    assert ports[0] != ports[1]


def test_three_tasks_with_a_parameter_server(slurm):
    found = results(slurm.srun("-n3", "-O", *TASK, "--ps"))
    assert [description["task"] for description, _ in found] == [
        "chief 0",
        "ps 0",
        "worker 0",
    ]
    assert {met for _, met in found} == {"met"}


def test_a_task_that_is_missing_is_named(slurm):
    done = slurm.srun(
        *("-n2", "-O", "--wait=0"),
        *TASK,
        environ={"TASK_THAT_STAYS_AWAY": "worker 1"},
    )
    [(description, met)] = results(done)
    address = description["jobs"]["worker"][1]
    assert met == f"peers missing after 5 s: worker 1 ({address})"


def test_a_single_task_is_no_cluster(slurm):
    done = slurm.srun("-n1", *TASK)
    assert (done.returncode, done.stdout) == (0, "null\n")


def test_two_tasks_train_together(slurm, root, tmp_path):
    pytest.importorskip("sklearn")
    done = slurm.srun(
        *("-n2", "-O", "--kill-on-bad-exit=1", f"--chdir={root}"),
        *(sys.executable, "-m", "trainer", "--train_steps=20"),
        *("--gin_file=experiments/digits.gin", f"--model_dir={tmp_path}"),
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["strategy"] == "multi_worker_mirrored"
    assert record["cluster"]["cluster"]["source"] == "Slurm"
    assert len(record["cluster"]["cluster"]["jobs"]["worker"]) == 2
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 20
