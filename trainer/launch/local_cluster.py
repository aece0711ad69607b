"""A cluster on this machine: its tasks, their ports and their secret."""

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence

from trainer.errors import UserError
from trainer.launch.task import TaskSpec


def make_cluster(
    command: Sequence[str],
    counts: Mapping[str, int],
    ports: Sequence[int],
    environ: Mapping[str, str],
) -> list[TaskSpec]:
    """Returns all tasks of a cluster on this machine, the chief first.

    Args:
        command: what every process runs.
        counts: how many tasks each job has.
        ports: one for the coordinator, and one for each task but an evaluator.
        environ: more variables for all of them.
    """
    coordinator, *rest = ports
    left = iter(rest)
    cluster = {
        job: [f"127.0.0.1:{next(left)}" for _ in range(count)]
        for job, count in counts.items()
        if count and job != "evaluator"
    }
    shared = {
        **environ,
        "TRAINER_COORDINATOR_PORT": str(coordinator),
        # A process that does not have it is no task of this cluster.
        "TRAINER_COORDINATOR_SECRET": secrets.token_hex(16),
        # The processes share this machine's GPUs: none may take all the memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": os.environ.get(
            "TF_FORCE_GPU_ALLOW_GROWTH", "true"
        ),
    }
    specs = []
    for job, count in counts.items():
        for index in range(count):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            own = {**shared, "TF_CONFIG": json.dumps(config)}
            specs.append(TaskSpec(job, index, tuple(command), own))
    return specs


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports of 127.0.0.1.

    They stay bound without a listener. A program that sets SO_REUSEADDR, as
    TensorFlow does, can still listen on them.

    Raises:
        UserError: there are not that many.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        try:
            for _ in range(count):
                holder = stack.enter_context(socket.socket())
                holder.bind(("127.0.0.1", 0))
                # Not before `bind`: the kernel could give two one port.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                ports.append(holder.getsockname()[1])
        # Such as too many open files.
        except OSError as error:
            raise UserError(
                f"--num_workers: {count} ports cannot be reserved: "
                f"{error.strerror}."
            ) from None
        yield ports
