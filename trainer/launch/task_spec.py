"""The processes to start, for a cluster on this machine or on several."""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence

from trainer.errors import UserError


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One process to start.

    Attributes:
        job: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: its number within the job.
        command: the program and its arguments.
        environ: variables to set in addition to the launcher's environment;
            not shown, because one is a secret.
    """

    job: str
    index: int
    command: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(
        default_factory=dict, repr=False
    )

    @property
    def name(self) -> str:
        """Such as `"worker 1"`."""
        return f"{self.job} {self.index}"


def make_cluster(
    command: Sequence[str],
    counts: Mapping[str, int],
    ports: Sequence[int],
    environ: Mapping[str, str],
) -> list[TaskSpec]:
    """Returns all tasks of a cluster on this machine, the chief first.

    Args:
        command: what every process runs.
        counts: how many tasks each job has, see `count_tasks`.
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


def count_tasks(
    *, num_workers: int, num_ps: int, evaluator: bool
) -> dict[str, int]:
    """Returns how many tasks each job of a cluster on this machine has.

    Without parameter servers, worker 0 is the chief. With them, the chief is
    an additional process.
    """
    # In this order: the first task leads, and its output is shown.
    return {
        "chief": int(num_ps > 0),
        "worker": num_workers,
        "ps": num_ps,
        "evaluator": int(evaluator),
    }


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports of 127.0.0.1.

    They stay bound without a listener. A program that sets SO_REUSEADDR, as
    TensorFlow does, can still listen on them.

    Raises:
        UserError: there are not that many.
    """
    with contextlib.ExitStack() as stack:
        holders = []
        try:
            for _ in range(count):
                holder = stack.enter_context(socket.socket())
                holder.bind(("127.0.0.1", 0))
                # Not before `bind`: the kernel could give two one port.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holders.append(holder)
        # Such as too many open files.
        except OSError as error:
            raise UserError(
                f"--num_workers: {count} ports cannot be reserved: "
                f"{error.strerror}."
            ) from None
        yield [holder.getsockname()[1] for holder in holders]
