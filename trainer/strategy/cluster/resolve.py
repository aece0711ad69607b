"""Finds the cluster that this process is part of."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from trainer.strategy.cluster import flags, kubernetes, slurm, tf_config
from trainer.strategy.cluster.spec import Cluster


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

    The first of these that is present decides: the flags, `TF_CONFIG`, a Slurm
    step of several tasks, a Kubernetes StatefulSet. Kubeflow's TFJob sets
    `TF_CONFIG`, and so do Vertex AI and `python -m trainer.launch`. Reads
    only the environment, and does not import TensorFlow.

    Under Slurm and Kubernetes, whose tasks have no jobs, some tasks become
    parameter servers if the strategy needs `ps`; see `TRAINER_NUM_PS`. The
    first four arguments are those of `trainer.strategy.cluster.flags.resolve`.

    Returns:
        The cluster, or `None` if there is none.

    Raises:
        UserError: the description of the cluster is invalid.
    """
    given = {
        "worker_hosts": worker_hosts,
        "ps_hosts": ps_hosts,
        "task_type": task_type,
        "task_index": task_index,
    }
    # Explicit settings win over what a scheduler sets by itself. TF_CONFIG
    # without a cluster falls through to the scheduler.
    cluster = None
    if flags.detect(**given):
        cluster = flags.resolve(**given)  # type: ignore[arg-type]
    elif tf_config.detect(environ):
        cluster = tf_config.resolve(environ)
    if cluster is None and slurm.detect(environ):
        cluster = slurm.resolve(environ, ps=ps)
    if cluster is None and kubernetes.detect(environ):
        cluster = kubernetes.resolve(environ, ps=ps)
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
    if flags.detect(**given):
        return True
    sources = (tf_config, slurm, kubernetes)
    return any(source.detect(environ) for source in sources)
