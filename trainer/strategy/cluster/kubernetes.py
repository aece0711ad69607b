"""The cluster of a Kubernetes StatefulSet or indexed Job.

Its pods are called `NAME-0`, `NAME-1`, ... and reach each other through a
headless service as `NAME-0.SERVICE`. The pod template sets

    TRAINER_NUM_WORKERS  how many workers there are
    TRAINER_SERVICE      the headless service's name
    TRAINER_NUM_PS       how many parameter servers, if the strategy needs
                         any (default: 1). There are then 1 + TRAINER_NUM_PS +
                         TRAINER_NUM_WORKERS replicas: pod 0 is the chief,
                         and the next ones are the parameter servers
    TRAINER_PORT         the port of every task, 2222 by default

This needs no permissions on the cluster's API server.
"""

import os
import re
import socket
from collections.abc import Mapping

from trainer.errors import UserError
from trainer.strategy.cluster.ranks import (
    MOST_TASKS,
    cluster_of_ranks,
    number_of_ps,
    read_number,
)
from trainer.strategy.cluster.spec import Cluster

SOURCE = "Kubernetes"
_WORKERS = "TRAINER_NUM_WORKERS"
_SERVICE = "TRAINER_SERVICE"
_PORT = "TRAINER_PORT"
# A DNS label, as the API server requires of these names, and the ordinal.
_POD = re.compile(r"(?P<name>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)-(?P<index>\d+)")


def detect(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this is a pod whose template sets the workers."""
    # Kubernetes sets this variable in every pod; only the template can tell
    # whether the pods form a cluster.
    return "KUBERNETES_SERVICE_HOST" in environ and bool(environ.get(_WORKERS))


def resolve(
    environ: Mapping[str, str] = os.environ, *, ps: bool = False
) -> Cluster | None:
    """Reads the pod's ordinal from its host name; see `resolve_cluster`.

    Returns:
        The cluster; `None` for a single worker.

    Raises:
        UserError: a variable is missing or wrong, or the host name has no
            ordinal.
    """
    workers = read_number(environ, _WORKERS, least=1, most=MOST_TASKS)
    num_ps = number_of_ps(environ, wanted=ps)
    total = 1 + num_ps + workers if num_ps else workers
    if total == 1:
        return None
    service = environ.get(_SERVICE, "").strip()
    if not service:
        raise UserError(
            f"{_SERVICE} is not set: the name of the headless service through "
            "which the pods reach each other."
        )
    name, index = _pod(environ)
    # `JOBSET-REPLICATED_JOB-JOB-POD`, behind a service of the JobSet's name.
    job = re.fullmatch(rf"{re.escape(service)}-.+-(\d+)", name)
    if job and not index and 0 < int(job[1]) < total:
        raise UserError(
            f"{SOURCE}: {name}-{index} is the first pod of job {job[1]} of the "
            f"JobSet {service}, but tasks are the pods of one job. Give it "
            f"{total} completions and one replica, or set TF_CONFIG in each."
        )
    port = read_number(environ, _PORT, default=2222, least=1, most=65535)
    if index >= total:
        raise UserError(
            f"{SOURCE}: this pod is {name}-{index}, but {_WORKERS}={workers} "
            f"makes {total} tasks: {name}-0 to {name}-{total - 1}. Set "
            f"{_WORKERS} to the number of replicas that train."
        )
    addresses = [f"{name}-{i}.{service}:{port}" for i in range(total)]
    return cluster_of_ranks(addresses, index, num_ps=num_ps, source=SOURCE)


def _pod(environ: Mapping[str, str]) -> tuple[str, int]:
    host = environ.get("HOSTNAME") or socket.gethostname()
    # The host name may be fully qualified.
    match = _POD.fullmatch(host.split(".")[0])
    if match is None:
        raise UserError(
            f"{SOURCE}: the host name {host!r} does not end in a number. Run "
            "the tasks as a StatefulSet or an indexed Job, or set TF_CONFIG."
        )
    index = environ.get("JOB_COMPLETION_INDEX", match["index"])
    if index != match["index"]:
        raise UserError(
            f"{SOURCE}: JOB_COMPLETION_INDEX={index}, but the host name "
            f"{host!r} ends in {match['index']}. With hostNetwork it is the "
            "node's: leave that out, or set TF_CONFIG."
        )
    return match["name"], int(match["index"])
