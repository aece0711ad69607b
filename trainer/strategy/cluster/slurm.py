"""The cluster of a Slurm step: each task of `srun` is one process.

TensorFlow's own resolver sorts the hosts as text, so that a rank may get
another node's address. Here the ranks follow Slurm's node list, and each
process checks the result against the node that it runs on.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping

from trainer.errors import UserError
from trainer.strategy.cluster.ranks import (
    cluster_of_ranks,
    number_of_ps,
    read_number,
)
from trainer.strategy.cluster.schedulers import ALONE
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
# Such as "2(x3),1". The lengths of numbers bound what they expand to.
_COUNT = r"([1-9]\d{0,5})(?:\(x([1-9]\d{0,4})\))?"
_ALL_COUNTS = re.compile(f"{_COUNT}(?:,{_COUNT})*")
# Such as "n[2,10-11]", of a node list that is split at its outer commas.
_RANGES = r"\[\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*\]"
_NODE = re.compile(rf"(?:[^\[\],\s]|{_RANGES})+")
# More than any cluster has. A longer list is cut, and then fits no counts.
_MOST_NODES = 100_000
_OUTER_COMMA = re.compile(r",(?![^\[\]]*\])")


def detect(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this is one of several tasks of a Slurm step.

    The batch script itself and an interactive shell with its single task are
    not.
    """
    several = environ.get(_TASKS, "1") not in ("", "0", "1")
    return _RANK in environ and several and not environ.get(ALONE)


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
    nodes = expand_nodes(environ.get(_NODES, ""))
    counts = expand_counts(environ.get(_COUNTS, ""))
    # These come from different variables, and a nested `srun` may leave some of
    # the outer step in the environment.
    if len(nodes) != len(counts) or sum(counts) != total:
        raise UserError(
            f"{SOURCE}: {_NODES}={environ.get(_NODES, '')} and "
            f"{_COUNTS}={environ.get(_COUNTS, '')} do not make {_TASKS}="
            f"{total} tasks."
        )
    # One node after another, which is Slurm's default order.
    tasks = [
        (node, local)
        for node, count in zip(nodes, counts, strict=True)
        for local in range(count)
    ]
    # It may continue, as in `cyclic:block`; the rest is about the sockets of a
    # node.
    if environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic"):
        tasks.sort(key=lambda task: task[1])
    base = _port_base(environ, largest=max(counts))
    addresses = [f"{node}:{base + local}" for node, local in tasks]
    cluster = cluster_of_ranks(
        addresses, rank, num_ps=number_of_ps(environ, wanted=ps), source=SOURCE
    )
    _check_own_node(environ, cluster, local=tasks[rank][1])
    return cluster


def expand_nodes(text: str) -> list[str]:
    """Expands a node list such as `"n[2,10-11],gpu[01-03]-ib"`, in its order.

    Of several brackets in one name, the last one varies fastest.

    Raises:
        UserError: it is empty or not a node list.
    """
    nodes: list[str] = []
    for name in _OUTER_COMMA.split(text.strip()):
        if not _NODE.fullmatch(name):
            raise UserError(
                f"{_NODES}={text!r} is not a node list, such as n[1-3,7],m1."
            )
        choices = [
            list(itertools.islice(_expand_ranges(part), _MOST_NODES))
            if part.startswith("[")
            else [part]
            for part in re.split(f"({_RANGES})", name)
        ]
        found = map("".join, itertools.product(*choices))
        nodes += itertools.islice(found, _MOST_NODES)
    return nodes


def expand_counts(text: str) -> list[int]:
    """Expands the tasks on each node: `"2(x3),1"` is 2, 2, 2, 1.

    Raises:
        UserError: it is empty or has another form.
    """
    if not _ALL_COUNTS.fullmatch(text.strip()):
        raise UserError(
            f"{_COUNTS}={text!r} is not a list of task counts, such as 2(x3),1."
        )
    return [
        int(count)
        for count, times in re.findall(_COUNT, text)
        for _ in range(int(times or 1))
    ]


def _expand_ranges(brackets: str) -> Iterator[str]:
    """Yields the numbers of one bracket."""
    for part in brackets[1:-1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            # Slurm writes leading zeros: n[08-10] is n08, n09, n10.
            yield str(number).zfill(len(first))


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
