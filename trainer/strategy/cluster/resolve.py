"""Finds the cluster that this process is part of.

The flags `--worker_hosts --ps_hosts --task_type --task_index` mean the same as
in TensorFlow 1: with `--ps_hosts`, the first of the `--worker_hosts` is the
chief. It is `--task_type=worker --task_index=0` or `--task_type=chief`.
TensorFlow's own worker indices start after it.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from trainer.errors import UserError
from trainer.runtime.process_exit import LAUNCHER
from trainer.strategy.cluster import (
    kubernetes,
    schedulers,
    slurm,
    tf_config,
)
from trainer.strategy.cluster.spec import Cluster

_SOURCE = "The flags of the cluster"
# The first one that says anything decides.
_ENVIRONMENTS = (tf_config, slurm, kubernetes)


def resolve_cluster(
    *,
    worker_hosts: str | Sequence[str] | None = None,
    ps_hosts: str | Sequence[str] | None = None,
    task_type: str | None = None,
    task_index: int | None = None,
    ps: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """Finds this process's cluster.

    The first of these that is present decides, and others must not contradict
    it: the flags, `TF_CONFIG`, a Slurm step of several tasks, a Kubernetes
    StatefulSet, another scheduler that names the hosts. Kubeflow's TFJob sets
    `TF_CONFIG`, and so do Vertex AI and `python -m trainer.launch`. Reads
    only the environment, and does not import TensorFlow.

    Under Slurm and Kubernetes, whose tasks have no jobs, some tasks become
    parameter servers if the strategy needs `ps`; see `TRAINER_NUM_PS`. The
    first four arguments are those flags; hosts may be a list.

    Returns:
        The cluster, or `None` if there is none.

    Raises:
        UserError: the description of the cluster is invalid.
    """
    schedulers.check_names(environ)
    # Explicit settings win over what a scheduler sets by itself. TF_CONFIG
    # without a cluster falls through to the scheduler.
    cluster = None
    given = (worker_hosts, ps_hosts, task_type, task_index)
    if given != (None, None, None, None):
        cluster = _from_flags(*given)
    for source in _ENVIRONMENTS:
        if cluster is None and source.detect(environ):
            cluster = source.resolve(environ, ps=ps)
    if cluster is None:
        cluster = schedulers.resolve(environ, ps=ps)
    # What the launcher starts on one machine is a cluster of its own.
    elif LAUNCHER not in environ:
        schedulers.check_agrees(cluster, environ)
    if cluster is not None:
        logging.info(
            "Cluster from %s: this is %s of %s.",
            cluster.source,
            cluster.name,
            cluster.jobs,
        )
    return cluster


def is_described(
    given: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> bool:
    """Returns whether a cluster is described, even one of a single worker."""
    return (
        any(value is not None for value in given.values())
        or any(source.detect(environ) for source in _ENVIRONMENTS)
        or bool(schedulers.told(environ))
    )


def _from_flags(
    worker_hosts: str | Sequence[str] | None,
    ps_hosts: str | Sequence[str] | None,
    task_type: str | None,
    task_index: int | None,
) -> Cluster:
    workers, servers = _hosts(worker_hosts), _hosts(ps_hosts)
    if not workers:
        raise UserError(
            "--ps_hosts, --task_type and --task_index need --worker_hosts: "
            "every worker's host:port, such as --worker_hosts=n1:2222,n2:2222."
        )
    job, index = task_type or "worker", task_index or 0
    if task_index is None and job in ("worker", "ps"):
        raise UserError(
            f"--task_index is missing: which of the {job}s is this process? "
            "The first has --task_index=0."
        )
    if servers and len(workers) < 2:
        raise UserError(
            "--worker_hosts needs at least two hosts with --ps_hosts: the "
            "first one coordinates, the others train."
        )
    # The first host is the chief. With servers TensorFlow's worker 0 is the
    # second one; without them, the chief is worker 0.
    if not servers:
        job = "worker" if (job, index) == ("chief", 0) else job
        return Cluster({"worker": workers}, job, index, _SOURCE)
    if job == "worker":
        job, index = ("worker", index - 1) if index else ("chief", 0)
    jobs = {"chief": workers[:1], "worker": workers[1:], "ps": servers}
    return Cluster(jobs, job, index, _SOURCE)


def _hosts(value: str | Sequence[str] | None) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [part.strip() for part in parts if part.strip()]
