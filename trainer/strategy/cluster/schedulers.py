"""The rank of a task and the number of tasks, as schedulers tell them.

If a job has several tasks and each takes itself for the only one, each trains
its own model, without a warning.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from trainer.errors import UserError, did_you_mean
from trainer.strategy.cluster.ranks import (
    NUM_PS,
    cluster_of_ranks,
    number_of_ps,
    read_number,
)
from trainer.strategy.cluster.spec import Cluster

ALONE = "TRAINER_ALONE"
_PORT = "TRAINER_PORT"
# The variables of this project that a person sets.
_OWN = (
    *(ALONE, _PORT, NUM_PS, "TRAINER_NUM_WORKERS", "TRAINER_SERVICE"),
    *("TRAINER_MIN_WORKERS", "TRAINER_COORDINATOR_PORT"),
    *("TRAINER_COORDINATOR_SECRET", "TRAINER_EXIT_REPORT", "TRAINER_LAUNCHER"),
)


class Scheduler(NamedTuple):
    """The variables by which a scheduler tells a task who it is.

    Attributes:
        name: of the scheduler.
        rank: the variable with the number of the task, or with its host.
        size: that with the number of tasks; `""` if there is none.
        hosts: that with the host of each task, if one task runs on each.
    """

    name: str
    rank: str
    size: str = ""
    hosts: str = ""

    def hosts_in(self, environ: Mapping[str, str]) -> list[str]:
        """The hosts of all tasks, if they are known; a list in text or JSON."""
        return re.findall(r"[^\s,;\"\[\]]+", environ.get(self.hosts, ""))


# From the manual of each. What is inside of another comes before it: mpirun
# within a step of Slurm starts more tasks than the step has.
SCHEDULERS = (
    Scheduler("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Scheduler("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    Scheduler("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"),
    Scheduler("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    Scheduler("torchrun or accelerate", "RANK", "WORLD_SIZE"),
    Scheduler("LSF", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    Scheduler("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    Scheduler("Cray PALS", "PALS_RANKID", "PALS_SIZE"),
    Scheduler("PBS", "PBS_VNODENUM", "PBS_NP"),
    Scheduler("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    Scheduler(
        *("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        "SKYPILOT_NODE_IPS",
    ),
    Scheduler("SageMaker", "SM_CURRENT_HOST", hosts="SM_HOSTS"),
    Scheduler("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
    Scheduler(
        *("Volcano", "VC_TASK_INDEX", "VC_WORKER_NUM"), "VC_WORKER_HOSTS"
    ),
    Scheduler(
        "AWS Batch", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"
    ),
    # These do not say how many there are.
    Scheduler("PMIx", "PMIX_RANK"),
    Scheduler("Kubernetes' indexed Job", "JOB_COMPLETION_INDEX"),
)


class Told(NamedTuple):
    """The information from one scheduler.

    Attributes:
        by: the scheduler.
        rank: the number of this task.
        size: how many tasks there are; 0 if it does not say that.
        text: the variables, for messages.
    """

    by: Scheduler
    rank: int
    size: int
    text: str


def told(environ: Mapping[str, str] = os.environ) -> list[Told]:
    """Returns what schedulers say if this is one of several tasks.

    Raises:
        UserError: a variable is no number, or they contradict each other.
    """
    if environ.get(ALONE, "") not in ("", "0"):
        return []
    found = []
    for one in SCHEDULERS:
        if not environ.get(one.rank, "").strip():
            continue
        # Programs of all kinds have a RANK, and many tasks a number.
        if one.size and one.size not in environ and one.rank == "RANK":
            continue
        hosts = one.hosts_in(environ)
        if environ[one.rank] in hosts:
            rank, size = hosts.index(environ[one.rank]), len(hosts)
        else:
            rank = read_number(environ, one.rank)
            size = read_number(environ, one.size, default=0) if one.size else 0
        text = f"{one.rank}={environ[one.rank]}"
        if size:
            text += f" and {one.size or one.hosts}={size}"
        if rank and size and rank >= size:
            raise UserError(f"{one.name}: {text} contradict each other.")
        if rank or size > 1:
            found.append(Told(one, rank, size, text))
    for other in found[1:]:
        if other.size and found[0].size and other[1:3] != found[0][1:3]:
            raise UserError(
                f"{found[0].text} ({found[0].by.name}) contradict {other.text} "
                f"({other.by.name}). Start the tasks by one of them, or unset "
                "the variables of the other."
            )
    return found


def check_names(environ: Mapping[str, str] = os.environ) -> None:
    """Refuses variables of this project that are misspelled.

    Raises:
        UserError: one is, or stands without the one that it belongs to.
    """
    for name in environ:
        if not name.startswith("TRAINER") or name in _OWN:
            continue
        if hint := did_you_mean(name, _OWN, cutoff=0.8):
            raise UserError(f"Nothing reads {name}.{hint}")
    if "TRAINER_SERVICE" in environ and not environ.get("TRAINER_NUM_WORKERS"):
        raise UserError(
            "TRAINER_SERVICE is set, and TRAINER_NUM_WORKERS is not: how many "
            "pods train. Set both, or neither."
        )
    if (
        "TRAINER_NUM_WORKERS" in environ
        and "KUBERNETES_SERVICE_HOST" not in environ
    ):
        raise UserError(
            "TRAINER_NUM_WORKERS is for pods of Kubernetes, and this is none: "
            "KUBERNETES_SERVICE_HOST is not set. Elsewhere, set TF_CONFIG, or "
            "--worker_hosts and --task_index."
        )


def check_agrees(
    cluster: Cluster, environ: Mapping[str, str] = os.environ
) -> None:
    """Compares a cluster with what a scheduler says of the same task.

    Raises:
        UserError: they contradict each other.
    """
    tasks = len(cluster.tasks("chief", "worker", "ps"))
    for one in told(environ):
        # A cluster may have a task more, the evaluator.
        if one.size and one.size not in (tasks, tasks + (tasks > 1)):
            raise UserError(
                f"{cluster.source} names a cluster of {tasks}, but {one.text} "
                f"({one.by.name}) say that there are {one.size} tasks. Let "
                f"each have its own, or set {ALONE}=1 if each is a run of its "
                "own."
            )
        # With other jobs, ranks may be dealt out in any order.
        workers = [*cluster.jobs] == ["worker"] and cluster.job == "worker"
        if workers and one.rank != cluster.index:
            raise UserError(
                f"{cluster.source} says that this is {cluster.name}, but "
                f"{one.text} ({one.by.name}). It may have been set once, for "
                "all tasks: set it in each, or leave it out."
            )


def resolve(
    environ: Mapping[str, str] = os.environ, *, ps: bool = False
) -> Cluster | None:
    """The cluster of a task that no better description has; see `Scheduler`.

    Returns:
        The cluster, if the hosts are known; `None` if the task is alone.

    Raises:
        UserError: there are others, and it is not known where.
    """
    for one in told(environ):
        hosts = one.by.hosts_in(environ)
        if one.size and len(hosts) == one.size:
            port = read_number(environ, _PORT, default=2222, least=1)
            return cluster_of_ranks(
                [f"{host}:{port}" for host in hosts],
                one.rank,
                num_ps=number_of_ps(environ, wanted=ps),
                source=one.by.name,
            )
        raise UserError(
            f"{one.text} ({one.by.name}): this is one of several tasks, and "
            "where the others are is not known. Set TF_CONFIG, or "
            "--worker_hosts and --task_index, in each of them. If each is a "
            f"run of its own, with its own --model_dir, set {ALONE}=1."
        )
    return None
