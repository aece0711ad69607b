"""Which GPUs each strategy uses, as TensorFlow derives it from what it gets.

Nothing here has a GPU: see `gpu_script.py` for what stands in.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.plugins.strategies.gpus_of_slurm import taken
from trainer.launch.main import cluster_environ, held_ports

SCRIPT = pathlib.Path(__file__).with_name("gpu_script.py")
GPU = "/device:GPU:"


def start(case, gpus, *argument, **environ):
    # The tests set it, so that TensorFlow looks for no GPU.
    inherited = {**os.environ}
    del inherited["CUDA_VISIBLE_DEVICES"]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), case, str(gpus), *argument],
        env=inherited | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    out, err = process.communicate(timeout=120)
    assert out, err
    return json.loads(out.splitlines()[-1]) | {"stderr": err}


def config(job, index, **jobs):
    task = {"type": job, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


ALONE = {
    ("default", 2): (1, ["gpu:0"], [0, 1]),
    ("one_device", 2): (1, [GPU + "0"], [0, 1]),
    # TensorFlow takes the memory of every GPU that it sees.
    ("one_device", 2, "gpu:1"): (1, [GPU + "0"], [1]),
    ("mirrored", 3): (3, [GPU + "0", GPU + "1", GPU + "2"], [0, 1, 2]),
    ("mirrored", 3, "gpu:2,gpu:0"): (2, [GPU + "0", GPU + "1"], [0, 2]),
    ("multi_worker_mirrored", 2): (2, [GPU + "0", GPU + "1"], [0, 1]),
}


def test_one_process_uses_the_gpus_that_it_is_given():
    processes = {case: start(*case) for case in ALONE}
    found = {case: end(process) for case, process in processes.items()}
    for case, (replicas, devices, gpus) in ALONE.items():
        assert found[case]["replicas"] == replicas
        assert found[case]["devices"] == devices
        assert found[case]["gpus"] == gpus
    for name in ("default", "one_device"):
        said = found[name, 2]["stderr"]
        assert "1 of the 2 GPUs here are not used. --strategy=mirrored" in said


def test_an_evaluator_beside_training_has_only_the_gpus_it_is_told():
    told = {"CUDA_VISIBLE_DEVICES": "0,1"}
    for process, count in (
        (start("evaluator", 2), 0),
        (start("evaluator", 2, **told), 2),
    ):
        out, err = process.communicate(timeout=120)
        assert len(json.loads(out.splitlines()[-1])) == count, err
        assert ("leaves all GPUs to training" in err) == (count == 0)


def test_replicas_on_gpus_train_as_one_device_does():
    cases = ("trained_default", 0), ("trained_mirrored", 2)
    cases = (*cases, ("trained_central_storage", 3))
    one, *others = [start(*case) for case in cases]
    expected = json.loads(one.communicate(timeout=120)[0])
    for process in others:
        weights = json.loads(process.communicate(timeout=120)[0])
        for found, reference in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, reference, atol=2e-6)


def test_a_worker_has_the_gpus_of_tensorflows_own_resolver():
    with held_ports(2) as (one, other):
        ours, theirs = (
            end(
                start(
                    case, 2, **config("worker", 0, worker=[f"127.0.0.1:{port}"])
                )
            )
            for case, port in (
                ("multi_worker_mirrored", one),
                ("of_tensorflow", other),
            )
        )
    for name in ("replicas", "devices", "gpus"):
        assert ours[name] == theirs[name]
    assert ours["replicas"] == 2


def of_two(gpus, hosts=("127.0.0.1", "127.0.0.1"), case=None, **environ):
    with held_ports(3) as (coordinator, *ports):
        addresses = [
            f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)
        ]
        shared = {"TRAINER_COORDINATOR_PORT": str(coordinator), **environ}
        started = [
            start(
                case or "multi_worker_mirrored",
                gpus[index],
                **config("worker", index, worker=addresses),
                **shared,
            )
            for index in range(2)
        ]
        return [end(process) for process in started]


def test_workers_of_one_host_share_its_gpus():
    found = of_two((4, 4))
    assert [one["gpus"] for one in found] == [[0, 1], [2, 3]]
    assert [one["replicas"] for one in found] == [4, 4]
    for index, one in enumerate(found):
        task = f"/job:worker/replica:0/task:{index}"
        assert one["devices"] == [f"{task}{GPU}{i}" for i in range(2)]


def test_tasks_of_slurm_share_a_nodes_gpus():
    with held_ports(1) as (coordinator,):
        started = [
            start(
                "multi_worker_mirrored",
                2,
                SLURM_PROCID=str(rank),
                SLURM_LOCALID=str(rank),
                SLURM_STEP_NUM_TASKS="2",
                SLURM_STEP_NODELIST="localhost",
                SLURM_STEP_TASKS_PER_NODE="2",
                SLURM_JOB_ID=str(coordinator),
                CUDA_VISIBLE_DEVICES="0,1",
                TRAINER_COORDINATOR_PORT=str(coordinator),
            )
            for rank in range(2)
        ]
        assert [end(process)["gpus"] for process in started] == [[0], [1]]


ON_NODE, PER_TASK = "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK"


@pytest.mark.parametrize(
    ("named", "more", "expected"),
    [
        # As Slurm 22.05 sets them with --gpus-per-node=4,
        (["0,1,2,3"] * 2, {ON_NODE: "4"}, ["01", "23"]),
        # the same and --gpu-bind=closest, where all are equally close,
        (["0,1,2,3"] * 2, {ON_NODE: "4", "SLURM_GPU_BIND": "closest"}, 0),
        # and srun's own --gpus-per-task=2, of which no other variable tells.
        (["0,1", "2,3"], {ON_NODE: "4"}, ["01", "23"]),
        (["0", "1"], {ON_NODE: "2"}, ["0", "1"]),
        # With devices that are fenced off, each task counts its own from 0.
        (["0,1", "0,1"], {ON_NODE: "4", PER_TASK: "2"}, ["01", "01"]),
        # What the tasks get of the CPUs is of no account.
        (["0,1"] * 2, {ON_NODE: "2", "SLURM_TRES_PER_TASK": "cpu:1"}, "01"),
        # An older Slurm does not say how many there are.
        (["0,1,2,3"] * 2, {}, ["01", "23"]),
        (["0,1", "0,1"], {PER_TASK: "2"}, ["01", "01"]),
    ],
)
def test_what_slurm_has_dealt_out(named, more, expected, monkeypatch):
    found = [
        "".join(
            taken(
                {
                    "SLURM_PROCID": str(rank),
                    "SLURM_LOCALID": str(rank),
                    "SLURM_STEP_NUM_TASKS": "2",
                    "SLURM_STEP_NODELIST": "n1",
                    "SLURM_STEP_TASKS_PER_NODE": "2",
                    "CUDA_VISIBLE_DEVICES": one,
                    **more,
                },
                monkeypatch,
            )
        )
        for rank, one in enumerate(named)
    ]
    assert found == list(expected or ["01", "23"])


def test_cpus_that_would_not_be_used_are_refused():
    (found,) = [end(start("multi_worker_mirrored", 0, "2 CPUs"))]
    assert "virtual_devices has no meaning with it" in found["refused"]


def test_gpus_that_do_not_fit_are_refused():
    for one in of_two((3, 3)):
        assert (
            "on 127.0.0.1 and cannot share its 3 GPUs evenly" in one["refused"]
        )
    for one in of_two((1, 2), hosts=("127.0.0.1", "localhost")):
        assert (
            "The tasks differ in GPUs: 1 on worker 0; 2 on worker 1."
            in one["refused"]
        )


@pytest.mark.parametrize(
    ("of_workers", "refused"),
    [("1,1", None), ("2,2", "These have 2."), ("1,2", "Mismatched number")],
)
def test_servers_take_one_gpu_of_each_worker(of_workers, refused):
    with held_ports(5) as (coordinator, *ports):
        jobs = dict(
            zip(
                ("chief", "ps"),
                ([f"127.0.0.1:{p}"] for p in ports),
                strict=False,
            ),
            worker=[f"127.0.0.1:{port}" for port in ports[2:]],
        )
        environ = {"TRAINER_COORDINATOR_PORT": str(coordinator)}
        served = [
            start("serve", 2, **config(job, index, **jobs), **environ)
            for job, index in (("worker", 0), ("worker", 1), ("ps", 0))
        ]
        try:
            chief = end(
                start(
                    "parameter_server",
                    2,
                    of_workers,
                    **config("chief", 0, **jobs),
                    **environ,
                )
            )
        finally:
            for process in served:
                process.kill()
                process.communicate()
    if refused is None:
        # The chief's own are for others.
        assert (chief["replicas"], chief["gpus"]) == (1, [])
    else:
        assert "Start a worker for each GPU" in chief["refused"]
        assert refused in chief["refused"]


def test_the_launcher_deals_out_what_is_named(monkeypatch):
    counts = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}

    def dealt():
        return [
            own.get("CUDA_VISIBLE_DEVICES")
            for *_, own in cluster_environ(counts, range(9, 20))
        ]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-8a,7")
    assert dealt() == ["-1", "4,5", "GPU-8a,7", "-1", "-1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    # Each worker finds those of the host, and takes its own.
    assert dealt() == ["-1", None, None, "-1", "-1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(ValueError, match="2 workers cannot share the 3 GPUs"):
        dealt()
