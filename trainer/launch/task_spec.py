"""The processes to start, for a cluster on this machine or on several."""

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One process to start.

    Attributes:
        job: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: its number within the job.
        command: the program and its arguments.
        environ: variables to set in addition to the launcher's environment.
    """

    job: str
    index: int
    command: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as `"worker 1"`."""
        return f"{self.job} {self.index}"

    @property
    def log_name(self) -> str:
        """Such as `"worker_1.log"`."""
        return f"{self.job}_{self.index}.log"


def make_tasks(
    command: Sequence[str],
    *,
    ports: Sequence[int],
    num_workers: int,
    num_ps: int,
    evaluator: bool,
    min_workers: int | None = None,
) -> list[TaskSpec]:
    """Returns all tasks with their `TF_CONFIG`, the chief first.

    Without parameter servers, worker 0 is the chief. With them, the chief is
    an additional process.

    Args:
        command: what every process runs.
        ports: as many as `count_ports` returns.
        num_workers: how many workers.
        num_ps: how many parameter servers.
        evaluator: whether there is an evaluator; it needs no port.
        min_workers: how many workers are enough; `None` if all are needed.
    """
    left = iter(ports)
    # In this order: the first task leads, and its output is shown.
    counts = {"chief": int(num_ps > 0), "worker": num_workers, "ps": num_ps}
    cluster = {
        job: [f"127.0.0.1:{next(left)}" for _ in range(count)]
        for job, count in counts.items()
        if count
    }
    ids = [(job, i) for job in cluster for i in range(counts[job])]
    if evaluator:
        ids.append(("evaluator", 0))
    return [
        make_task(
            command,
            job,
            index,
            min_workers,
            environ=_environ(cluster, job, index),
        )
        for job, index in ids
    ]


def make_task(
    command: Sequence[str],
    job: str,
    index: int,
    min_workers: int | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> TaskSpec:
    """Returns one task of a cluster.

    Args:
        command: what it runs.
        job: see `TaskSpec`.
        index: see `TaskSpec`.
        min_workers: see `make_tasks`.
        environ: further environment variables.
    """
    # Without this, Python buffers output to a file, and the log lags behind.
    found = {"PYTHONUNBUFFERED": "1", **(environ or {})}
    if min_workers is not None:
        found["TRAINER_MIN_WORKERS"] = str(min_workers)
    return TaskSpec(job, index, tuple(command), found)


def count_ports(num_workers: int, num_ps: int) -> int:
    """Returns how many ports a cluster needs."""
    return num_workers + num_ps + int(num_ps > 0)


def _environ(
    cluster: Mapping[str, list[str]], job: str, index: int
) -> dict[str, str]:
    config = {"cluster": cluster, "task": {"type": job, "index": index}}
    environ = {"TF_CONFIG": json.dumps(config)}
    # The processes share this machine's GPUs: none may take all the memory.
    if "TF_FORCE_GPU_ALLOW_GROWTH" not in os.environ:
        environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return environ


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports of 127.0.0.1.

    They stay bound without a listener. A program that sets SO_REUSEADDR, as
    TensorFlow does, can still listen on them.

    Args:
        count: how many.
    """
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
            # Not before `bind`: the kernel could give two holders one port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield [holder.getsockname()[1] for holder in holders]
