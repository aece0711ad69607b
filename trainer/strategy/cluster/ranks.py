"""Assigns jobs to the ranks of a cluster of equal tasks."""

from collections.abc import Mapping

from trainer.errors import UserError
from trainer.strategy.cluster.spec import Cluster

NUM_PS = "TRAINER_NUM_PS"
# More than any cluster has: a typing error must not fill the memory.
MOST_TASKS = 100_000


def number_of_ps(environ: Mapping[str, str], *, wanted: bool) -> int:
    """Returns how many of the tasks are parameter servers, if any are `wanted`.

    Raises:
        UserError: the variable is not a number, or is 0 where servers are
            needed.
    """
    count = read_number(environ, NUM_PS, default=int(wanted), most=MOST_TASKS)
    if wanted and not count:
        raise UserError(
            f"{NUM_PS}=0, but the strategy needs parameter servers. Set it "
            "to at least 1."
        )
    return count


def cluster_of_ranks(
    addresses: list[str], rank: int, *, num_ps: int, source: str
) -> Cluster:
    """Assigns a job to every rank.

    Without parameter servers all ranks are workers. With them, rank 0 is the
    chief, ranks 1 to `num_ps` hold the variables and the rest are workers.

    Raises:
        UserError: there are too few ranks, or this rank is out of range.
    """
    if not num_ps:
        return Cluster({"worker": addresses}, "worker", rank, source)
    total, first_worker = len(addresses), 1 + num_ps
    if total <= first_worker:
        raise UserError(
            f"{source}: {total} tasks are too few for a chief, {num_ps} "
            f"parameter servers and a worker. Start at least "
            f"{first_worker + 1}."
        )
    jobs = {
        "chief": addresses[:1],
        "worker": addresses[first_worker:],
        "ps": addresses[1:first_worker],
    }
    job, begin = "worker", first_worker
    if rank < first_worker:
        job, begin = ("ps", 1) if rank else ("chief", 0)
    return Cluster(jobs, job, rank - begin, source)


def read_number(
    environ: Mapping[str, str],
    name: str,
    *,
    default: int | None = None,
    least: int = 0,
    most: int | None = None,
) -> int:
    """Reads a whole number from the environment.

    Args:
        environ: the environment.
        name: the variable.
        default: its value if it is not set; `None` if it must be set.
        least: the smallest valid number.
        most: the largest valid number, if there is one.

    Raises:
        UserError: it is missing or not a valid number.
    """
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    # `isdigit` alone accepts the digits of other scripts, and `int` alone
    # accepts `1_000`. It raises for thousands of digits.
    valid = text.isascii() and text.isdigit() and len(text) < 20
    valid = valid and int(text) >= least and (most is None or int(text) <= most)
    if not valid:
        limits = f"at least {least}"
        if most is not None:
            limits = f"from {least} to {most}"
        shown = f"{name}={text[:40]!r}" if text else f"{name} is not set"
        raise UserError(f"{shown}: it must be a whole number, {limits}.")
    return int(text)
