"""The cluster in `--worker_hosts --ps_hosts --task_type --task_index`.

The flags mean the same as in TensorFlow 1: with `--ps_hosts`, the first of the
`--worker_hosts` is the chief. It is `--task_type=worker --task_index=0` or
`--task_type=chief`. TensorFlow's own worker indices start after it.
"""

from collections.abc import Sequence

from trainer.errors import UserError, nearest
from trainer.strategy.cluster.spec import JOBS, Cluster

SOURCE = "flags"


def detect(**given: object) -> bool:
    """Returns whether any of the flags was given."""
    return any(value is not None for value in given.values())


def resolve(
    *,
    worker_hosts: str | Sequence[str] | None = None,
    ps_hosts: str | Sequence[str] | None = None,
    task_type: str | None = None,
    task_index: int | None = None,
) -> Cluster:
    """Reads the flags.

    Args:
        worker_hosts: `host:port` of every worker; a string is split at commas.
        ps_hosts: `host:port` of every parameter server, if there are any.
        task_type: this process's job; `"worker"` by default.
        task_index: this process's index among its job's hosts. Required
            except for a chief or an evaluator.

    Raises:
        UserError: the flags contradict each other, or one is missing.
    """
    workers, servers = _hosts(worker_hosts), _hosts(ps_hosts)
    if not workers:
        raise UserError(
            "--ps_hosts, --task_type and --task_index need --worker_hosts: "
            "every worker's host:port, such as --worker_hosts=n1:2222,n2:2222."
        )
    job = task_type or "worker"
    if job not in JOBS:
        raise UserError(
            f"--task_type={job}: there is no such job. {nearest(job, JOBS)}"
        )
    if task_index is None and job in ("worker", "ps"):
        raise UserError(
            f"--task_index is missing: which of the {job}s is this process? "
            "The first has --task_index=0."
        )
    if job == "ps" and not servers:
        raise UserError(
            "--task_type=ps needs --ps_hosts: every parameter server's "
            "host:port."
        )
    if servers and len(workers) < 2:
        raise UserError(
            "--worker_hosts needs at least two hosts with --ps_hosts: the "
            "first one coordinates, the others train."
        )
    index = task_index or 0
    _check_index(job, index, servers if job == "ps" else workers)
    if not servers:
        # Without servers, worker 0 is the chief.
        job = "worker" if job == "chief" else job
        return Cluster({"worker": workers}, job, index, SOURCE)
    # The chief takes the first address, so TensorFlow's worker 0 is the second
    # host.
    if job == "worker":
        job, index = ("worker", index - 1) if index else ("chief", 0)
    jobs = {"chief": workers[:1], "worker": workers[1:], "ps": servers}
    return Cluster(jobs, job, index, SOURCE)


def _hosts(value: str | Sequence[str] | None) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [part.strip() for part in parts if part.strip()]


def _check_index(job: str, index: int, hosts: list[str]) -> None:
    if job == "chief" and index:
        raise UserError(
            f"--task_index={index}: there is one chief, with --task_index=0."
        )
    if job in ("worker", "ps") and not 0 <= index < len(hosts):
        raise UserError(
            f"--task_index={index} is out of range: --{job}_hosts lists "
            f"{len(hosts)}. Valid: 0 to {len(hosts) - 1}."
        )
