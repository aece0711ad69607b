"""The cluster of a Slurm step: each task of `srun` is one process.

TensorFlow's own resolver sorts the hosts as text, so that a rank may get
another node's address. Here the ranks follow Slurm's node list, and each
process checks the result against the node that it runs on.
"""

import os
from collections.abc import Mapping

from trainer.errors import UserError
from trainer.strategy.cluster.ranks import (
    cluster_of_ranks,
    number_of_ps,
    read_number,
)
from trainer.strategy.cluster.slurm_lists import expand_counts, expand_nodes
from trainer.strategy.cluster.spec import Cluster, split_address

SOURCE = "Slurm"
_RANK = "SLURM_PROCID"
_TASKS = "SLURM_STEP_NUM_TASKS"
_NODES = "SLURM_STEP_NODELIST"
_COUNTS = "SLURM_STEP_TASKS_PER_NODE"
_PORT_BASE = "TRAINER_PORT"
# Two steps that share a node get different ports: consecutive job numbers are
# a stride apart. Up to 12000 + 600 * 32, below where Linux takes the ports
# of outgoing connections from (32768).
_DEFAULT_BASE = 12000
_STRIDE = 32
_SLOTS = 600
# The distance between the slots of two steps of one job. It shares no divisor
# with _SLOTS, so that the first 600 steps of a job all get different slots.
_STEP_SLOTS = 97


def detect(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this is one of several tasks of a Slurm step.

    The batch script itself and an interactive shell with its single task are
    not.
    """
    return _RANK in environ and environ.get(_TASKS, "1") not in ("", "0", "1")


def resolve(
    environ: Mapping[str, str] = os.environ, *, ps: bool = False
) -> Cluster:
    """Reads the variables that `srun` sets for every task.

    A task's port is `TRAINER_PORT` (default: 12000 and an offset that
    depends on the job and the step) plus its index on its node.

    Args:
        environ: the environment.
        ps: whether the strategy needs parameter servers;
            `TRAINER_NUM_PS` is their number, 1 by default. Then rank 0 is the
            chief and the next ranks are the parameter servers.

    Raises:
        UserError: a variable is missing or wrong, or the tasks are
            distributed in an unknown order.
    """
    rank = read_number(environ, _RANK)
    total = read_number(environ, _TASKS, least=1)
    nodes = expand_nodes(environ.get(_NODES, ""), source=_NODES)
    counts = expand_counts(environ.get(_COUNTS, ""), source=_COUNTS)
    # These come from different variables, and a nested `srun` may leave some of
    # the outer step in the environment.
    if len(nodes) != len(counts) or sum(counts) != total:
        raise UserError(
            f"{SOURCE}: {_NODES}={environ.get(_NODES, '')} and "
            f"{_COUNTS}={environ.get(_COUNTS, '')} do not make {_TASKS}="
            f"{total} tasks."
        )
    # It may go on, as in `cyclic:block`; the rest is about the sockets of a
    # node.
    cyclic = environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic")
    tasks = _cyclic(nodes, counts) if cyclic else _block(nodes, counts)
    base = _port_base(environ, largest=max(counts))
    addresses = [f"{node}:{base + local}" for node, local in tasks]
    cluster = cluster_of_ranks(
        addresses, rank, num_ps=number_of_ps(environ, wanted=ps), source=SOURCE
    )
    _check_own_node(environ, cluster, local=tasks[rank][1])
    return cluster


def _block(nodes: list[str], counts: list[int]) -> list[tuple[str, int]]:
    """Fills one node after another, which is Slurm's default order."""
    return [
        (node, local)
        for node, count in zip(nodes, counts, strict=True)
        for local in range(count)
    ]


def _cyclic(nodes: list[str], counts: list[int]) -> list[tuple[str, int]]:
    """Assigns ranks round-robin, as `srun --distribution=cyclic` does."""
    return [
        (node, local)
        for local in range(max(counts))
        for node, count in zip(nodes, counts, strict=True)
        if local < count
    ]


def _port_base(environ: Mapping[str, str], *, largest: int) -> int:
    if environ.get(_PORT_BASE, "").strip():
        # The last task of the fullest node has the highest port.
        most = 65536 - largest
        return read_number(environ, _PORT_BASE, least=1, most=most)
    job = read_number(environ, "SLURM_JOB_ID", default=0)
    step = read_number(environ, "SLURM_STEP_ID", default=0)
    # No task can ask another for a free port before it knows its address, so
    # all compute the same one.
    slot = (job + _STEP_SLOTS * step) % _SLOTS
    return _DEFAULT_BASE + _STRIDE * slot


def _check_own_node(
    environ: Mapping[str, str], cluster: Cluster, *, local: int
) -> None:
    """Checks the computed node against the one this process runs on."""
    host, _ = split_address(cluster.address)
    node = environ.get("SLURMD_NODENAME", host)
    own = read_number(environ, "SLURM_LOCALID", default=local)
    # Other distributions, such as `plane`, order the ranks differently.
    # `split_address` returns the host in lower case.
    if (node.lower(), own) != (host, local):
        raise UserError(
            f"{SOURCE}: rank {environ[_RANK]} runs as task {own} of node "
            f"{node}, but in block order it is task {local} of {host}. Start "
            "the tasks with srun --distribution=block."
        )
