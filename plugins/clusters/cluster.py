"""A cluster: the addresses of its tasks, and this process's place in it."""

import dataclasses
import json
from typing import Any

from trainer import UserError, nearest

# "chief" coordinates, "ps" holds variables, "evaluator" stands beside.
JOBS = ("chief", "worker", "ps", "evaluator")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a cluster and which of them this process is.

    Attributes:
        jobs: job name to the `host:port` of each of its tasks.
        job: this process's job.
        index: this process's number within its job.
        source: what the cluster was read from, such as `"TF_CONFIG"`.

    Raises:
        UserError: the specification contradicts itself.
    """

    jobs: dict[str, list[str]]
    job: str
    index: int
    source: str

    def __post_init__(self) -> None:
        for job in [*self.jobs, self.job]:
            if job not in JOBS:
                raise UserError(
                    f"{self.source}: unknown job {job!r}. {nearest(job, JOBS)}"
                )
        for job, addresses in self.jobs.items():
            for address in addresses:
                self._check_address(job, address)
        self._check_unique()
        if len(self.jobs.get("chief", [])) > 1:
            raise UserError(
                f"{self.source}: there are {len(self.jobs['chief'])} chiefs. "
                "Name one; the others are workers."
            )
        # An evaluator stands beside the cluster: it may have no address.
        count = len(self.jobs.get(self.job, []))
        if self.job != "evaluator" and not 0 <= self.index < count:
            raise UserError(
                f"{self.source}: this process is {self.job} {self.index}, but "
                f"there are {count} {self.job} addresses. Valid indices: "
                f"{', '.join(map(str, range(count))) or 'none'}."
            )

    @property
    def address(self) -> str:
        """This process's `host:port`."""
        return self.jobs[self.job][self.index]

    @property
    def name(self) -> str:
        """This process, such as `"worker 1"`."""
        return f"{self.job} {self.index}"

    def tasks(self, *jobs: str) -> list[tuple[str, str]]:
        """Name and address of every task of some jobs, the chief first."""
        return [
            (f"{job} {i}", address)
            for job in JOBS
            if job in jobs
            for i, address in enumerate(self.jobs.get(job, []))
        ]

    def tf_config(self) -> str:
        """The cluster as TensorFlow's `TF_CONFIG` says it."""
        task: dict[str, Any] = {"type": self.job, "index": self.index}
        return json.dumps({"cluster": self.jobs, "task": task})

    def describe(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        return {"source": self.source, "task": self.name, "jobs": self.jobs}

    def _check_address(self, job: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UserError(
                f"{self.source}: {address!r} of job {job!r} is no address. "
                "Write host:port, such as 10.0.0.2:2222."
            )

    def _check_unique(self) -> None:
        owners: dict[str, str] = {}
        for name, address in self.tasks(*JOBS):
            host, port = split_address(address)
            key = f"{'127.0.0.1' if host == 'localhost' else host}:{port}"
            if key in owners:
                raise UserError(
                    f"{self.source}: {owners[key]} and {name} have the "
                    f"same address {address}. Give each its own port."
                )
            owners[key] = name


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`; an IPv6 host loses its brackets.

    Args:
        address: such as `"n1:2222"` or `"[::1]:2222"`.

    Returns:
        The host in lower case and the port.
    """
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]").lower(), int(port)
