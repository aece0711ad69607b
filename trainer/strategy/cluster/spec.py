"""The cluster spec: all tasks and their addresses, and which one this is."""

import dataclasses
import ipaddress
import re
from collections.abc import Collection
from typing import Any

from trainer.errors import UserError, nearest

# "chief" coordinates, "ps" holds variables, "evaluator" only reads checkpoints.
JOBS = ("chief", "worker", "ps", "evaluator")

# What TensorFlow takes: an IPv6 host has brackets, and there is no scheme.
_ADDRESS = re.compile(
    r"(\[[0-9A-Fa-f:.]+(%\w+)?\]|\w[\w.-]*):(?P<port>[0-9]{1,5})", re.ASCII
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a cluster and which of them this process is.

    Attributes:
        jobs: job name to the `host:port` of each of its tasks.
        job: this process's job.
        index: this process's index within its job.
        source: what the cluster was read from, such as `"TF_CONFIG"`.
        origin: the cluster as it was given, if this is the part of it that
            is present; the tasks may have other names there.

    Raises:
        UserError: the specification contradicts itself.
    """

    jobs: dict[str, list[str]]
    job: str
    index: int
    source: str
    origin: "Cluster | None" = None

    def __post_init__(self) -> None:
        for job in [*self.jobs, self.job]:
            if job not in JOBS:
                raise UserError(
                    f"{self.source}: unknown job {job!r}. {nearest(job, JOBS)}"
                )
        for job, addresses in self.jobs.items():
            for address in addresses:
                self._check_address(job, address)
        # Two tasks with one address would wait for each other until the time-
        # out.
        self._check_unique()
        if len(self.jobs.get("chief", [])) > 1:
            raise UserError(
                f"{self.source}: there are {len(self.jobs['chief'])} chiefs. "
                "Name one; the others are workers."
            )
        # An evaluator is not part of the cluster, and may have no address.
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
        """Returns name and address of the tasks of jobs, the chief first."""
        return [
            (f"{job} {i}", address)
            for job in JOBS
            if job in jobs
            for i, address in enumerate(self.jobs.get(job, []))
        ]

    def among(self, names: Collection[str]) -> "Cluster":
        """Returns the part of this cluster that is present.

        Args:
            names: the chief and workers that are present, including this one.

        Returns:
            The smaller cluster with renumbered workers; this cluster itself
            if all are present.
        """
        jobs = dict(self.jobs)
        for job in ("chief", "worker"):
            stay = [a for name, a in self.tasks(job) if name in names]
            if stay or job in jobs:
                jobs[job] = stay
        jobs = {job: addresses for job, addresses in jobs.items() if addresses}
        if jobs == self.jobs:
            return self
        # Addresses are unique, and names change with the renumbering.
        index = jobs[self.job].index(self.address)
        return Cluster(jobs, self.job, index, self.source, origin=self)

    def describe(self) -> dict[str, Any]:
        """Returns the description for `run.json`."""
        described = {
            "source": self.source,
            "task": self.name,
            "jobs": self.jobs,
        }
        if self.origin is not None:
            described["given"] = {
                "task": self.origin.name,
                "jobs": self.origin.jobs,
            }
        return described

    def _check_address(self, job: str, address: str) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise UserError(
                f"{self.source}: {address!r} of job {job!r} is not an address. "
                "Write host:port, such as 10.0.0.2:2222 or [fd00::2]:2222."
            )

    def _check_unique(self) -> None:
        owners: dict[str, str] = {}
        for name, address in self.tasks(*JOBS):
            host, port = split_address(address)
            key = f"{_one_spelling(host)}:{port}"
            if key in owners:
                raise UserError(
                    f"{self.source}: {owners[key]} and {name} have the "
                    f"same address {address}. Give each its own port."
                )
            owners[key] = name


def _one_spelling(host: str) -> str:
    """The same for all spellings of a host that need no name server."""
    host = "127.0.0.1" if host == "localhost" else host.rstrip(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`, such as `"n1:2222"` or `"[::1]:2222"`.

    The host comes in lower case, and an IPv6 host without its brackets.
    """
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]").lower(), int(port)
