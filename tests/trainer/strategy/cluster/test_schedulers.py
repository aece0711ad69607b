"""What follows from the environments of schedulers: a role, a refusal, alone.

The variables are those of the manuals. Each environment is tried as it is and
changed, and what must follow is written beside the change.
"""

import json
import re

from trainer import UserError
from trainer.strategy.cluster.resolve import is_described, resolve_cluster

# By scheduler: rank, size, and where it sets them more variables.
MANUALS = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "Horovod": ("HOROVOD_RANK", "HOROVOD_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE", {"LOCAL_RANK": "0"}),
    "PyTorchJob": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "a-0"}),
    "accelerate": ("RANK", "WORLD_SIZE", {"ACCELERATE_USE_CPU": "1"}),
    "jsrun": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    "Flux": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", {"FLUX_JOB_ID": "f1"}),
    "PALS": ("PALS_RANKID", "PALS_SIZE"),
    "pbsdsh": ("PBS_VNODENUM", "PBS_NP", {"PBS_JOBID": "1.a"}),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"SLURM_JOB_ID": "7"}),
    "SkyPilot": ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
    "LeaderWorkerSet": ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
    "Volcano": ("VC_TASK_INDEX", "VC_WORKER_NUM"),
    "AWS Batch": ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
}
HOSTS = {
    "SkyPilot": ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3"),
    "Volcano": ("VC_WORKER_HOSTS", "10.0.0.1,10.0.0.2,10.0.0.3"),
}
ONE = json.dumps(
    {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
)


def three(index):
    workers = [f"h{i}:1" for i in range(3)]
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def changes(rank, size):
    """Each change of an environment, and what follows from it."""
    if size == "SLURM_STEP_NUM_TASKS":
        refused = "SLURM_STEP_NODELIST"  # It has a better description.
    else:
        refused = (
            rf"(?s){rank}=.*one of several.*--worker_hosts.*TRAINER_ALONE=1"
        )
    several = {rank: "1", size: "3"}
    yield several, refused
    yield {rank: "0", size: "3"}, refused
    yield several | {"TRAINER_ALONE": "1"}, None
    yield {rank: "0", size: "1"}, None
    yield {rank: "0"}, None
    yield {rank: "", size: ""}, None
    yield {size: "3"}, None
    if rank != "RANK":  # Alone, it may be anybody's.
        yield {rank: "2"}, f"{rank}=2.*one of several"
    yield {rank: "3", size: "3"}, f"{rank}=3 and {size}=3 contradict|NODELIST"
    yield {rank: "one", size: "3"}, f"{rank}='one': it must be a whole number"
    yield {rank: "1", size: "-3"}, f"{size}='-3'|SLURM_STEP_NODELIST"
    # One description for all of them, and one for each.
    yield several | {"TF_CONFIG": ONE}, "cluster of 1, but .* there are 3 tasks"
    yield several | {"TF_CONFIG": three(0)}, "this is worker 0, but .*=1"
    yield several | {"TF_CONFIG": three(1)}, "worker 1"
    yield several | {"TF_CONFIG": three(2)}, "this is worker 2, but .*=1"
    yield several | {"TRAINER_ALON": "1"}, "Did you mean 'TRAINER_ALONE'"
    # Another one that says the same, and one that does not.
    if rank != "PMI_RANK":
        yield several | {"PMI_RANK": "1", "PMI_SIZE": "3"}, f"{rank}|PMI_|SLURM"
        yield several | {"PMI_RANK": "0", "PMI_SIZE": "3"}, "contradict|SLURM"
        yield several | {"PMI_RANK": "1", "PMI_SIZE": "4"}, "contradict|SLURM"


ROWS = [
    (dict(*more) | environ, expected)
    for rank, size, *more in MANUALS.values()
    for environ, expected in changes(rank, size)
]
ROWS += [
    (
        {
            MANUALS[name][0]: str(index),
            MANUALS[name][1]: "3",
            variable: hosts,
        },
        f"worker {index}",
    )
    for name, (variable, hosts) in HOSTS.items()
    for index in range(3)
]
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}
ROWS += [
    (SAGEMAKER, "worker 1"),
    (SAGEMAKER | {"SM_HOSTS": '["algo-2"]'}, None),
    (SAGEMAKER | {"TF_CONFIG": ONE}, "cluster of 1"),
    ({"PMIX_RANK": "0"}, None),
    ({"PMIX_RANK": "2"}, "PMIX_RANK=2.*one of several"),
    ({"JOB_COMPLETION_INDEX": "0"}, None),
    ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX=1.*one of several"),
    ({"RANK": "7"}, None),
    ({"WORLD_SIZE": "7"}, None),
]
POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "net-1",
    "TRAINER_NUM_WORKERS": "3",
    "TRAINER_SERVICE": "peers",
}
ROWS += [
    (POD, "worker 1"),
    (POD | {"JOB_COMPLETION_INDEX": "1"}, "worker 1"),
    # With hostNetwork, the name is the node's.
    (POD | {"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETION_INDEX=0.*net-1"),
    (POD | {"TRAINER_ALONE": "0"}, "worker 1"),
    ({"TRAINER_NUM_WORKERS": "3"}, "this is none: KUBERNETES_SERVICE_HOST"),
    ({"TRAINER_SERVICE": "peers"}, "TRAINER_NUM_WORKERS is not"),
    (POD | {"TRAINER_NUM_WORKERS": ""}, "TRAINER_NUM_WORKERS is not"),
    (POD | {"TF_CONFIG": ONE, "JOB_COMPLETION_INDEX": "1"}, "this is worker 0"),
    # A JobSet's pods: of one replicated job with three completions, and of one
    # with three replicas of one pod each; and Jobs that are called alike.
    (POD | {"HOSTNAME": "peers-net-0-2"}, "worker 2"),
    (POD | {"HOSTNAME": "peers-net-0-0"}, "worker 0"),
    (POD | {"HOSTNAME": "peers-net-1-0"}, "job 1 of the JobSet peers.*complet"),
    (POD | {"HOSTNAME": "peers-net-2-0"}, "job 2 of the JobSet peers"),
    (POD | {"HOSTNAME": "peers-net-7-0"}, "worker 0"),
    (POD | {"HOSTNAME": "net-1-0"}, "worker 0"),
]
for name in ("NUM_WORKERS", "SERVICE", "NUM_PS", "PORT", "MIN_WORKERS"):
    right = f"TRAINER_{name}"
    for wrong in (
        right[:-1],
        right.replace("_", "", 1),
        right + "S",
        right * 9,
    ):
        hint = None if wrong in (right * 9,) else f"{wrong}. Did you mean"
        ROWS.append(({wrong: "2"}, hint))


def of_tf_config(cluster, task=None, **more):
    found = {"cluster": cluster} | ({"task": task} if task else {})
    return {"TF_CONFIG": json.dumps(found | more)}


def of_vertex(pool, index=0, **pools):
    found = {"cluster": pools, "task": {"type": pool, "index": index}}
    found |= {"environment": "cloud", "job": "{}"}
    return {"CLUSTER_SPEC": json.dumps(found)}


POOLS = {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"]}
ROWS += [
    (of_vertex("workerpool0", **POOLS), "chief 0"),
    (of_vertex("workerpool1", 1, **POOLS), "worker 1"),
    (of_vertex("workerpool2", **POOLS, workerpool2=["d:1"]), "ps 0"),
    (of_vertex("workerpool3", **POOLS, workerpool3=["d:1"]), "evaluator 0"),
    (of_vertex("workerpool1", 2, **POOLS), "CLUSTER_SPEC.*worker 2"),
    (of_vertex("workerpool1", **POOLS) | {"TF_CONFIG": ONE}, "worker 0"),
    (of_vertex("workerpool1", 1, **POOLS) | {"RANK": "1"}, "worker 1"),
    ({"CLUSTER_SPEC": "{}"}, None),
    ({"CLUSTER_SPEC": "yes"}, "CLUSTER_SPEC: Invalid JSON"),
]
TWO = {"worker": ["a:1", "b:1"]}
ROWS += [
    ({"TF_CONFIG": '{"Cluster": {"worker": ["a:1"]}}'}, "mean 'cluster'"),
    ({"TF_CONFIG": '{"Task": {"type": "worker"}}'}, "Did you mean 'task'"),
    ({"TF_CONFIG": '{"environment": "cloud"}'}, None),
    (of_tf_config(TWO), "does not say which task"),
    (of_tf_config(TWO, {"type": "worker"}), "which worker of 2"),
    (of_tf_config({"worker": ["a:1"]}, {"type": "worker"}), "worker 0"),
    (of_tf_config(TWO, {"index": 0}), "type"),
    (of_tf_config({"worker": "a:1"}, {"type": "worker"}), "valid array"),
    (of_tf_config(TWO, {"type": "worker", "index": "1"}), "worker 1"),
    (of_tf_config(TWO, {"type": "evaluator"}), "evaluator 0"),
]


def test_there_are_as_many_as_a_person_might_meet():
    assert len(ROWS) >= 300
    assert len({str(sorted(environ.items())) for environ, _ in ROWS}) > 290


def follows(environ):
    """The task's name, `None` if it is alone, or the sentence of a refusal."""
    try:
        found = resolve_cluster(environ=environ)
    except UserError as error:
        return error
    return found and found.name


def test_who_a_task_is():
    for environ, expected in ROWS:
        found = follows(environ)
        if isinstance(found, UserError):
            assert expected is not None, (environ, found)
            assert re.search(expected, str(found)), (environ, found)
            assert str(found).count("\n") < 3
        else:
            assert found == expected, environ
            assert expected is None or is_described({}, environ)
