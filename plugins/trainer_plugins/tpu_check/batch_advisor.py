"""`--fit_batch`: the largest batch that fits, found by compiling."""

import math

from trainer import UserError
from trainer.plugin_api import Programs, Row, Section
from trainer_plugins.tpu_check.compiling import (
    Compiled,
    DoesNotFit,
    compile_for,
)
from trainer_plugins.tpu_check.lowering import lower
from trainer_plugins.tpu_check.topology import Topology

# More examples on one chip are a mistake in the model, not a batch.
_MOST_ROWS = 2**20


def advise(programs: Programs, topology: Topology) -> Section:
    """Compiles the training step for powers of two of a replica's batch.

    Returns:
        What was tried, and the largest that fits while its double does not.

    Raises:
        UserError: not even a single example fits, or a step cannot be compiled
            at all.
    """
    search = _Search(programs, topology)
    best = search.largest()
    micro = programs.micro_batches
    note = "examples, of powers of two"
    if micro > 1:
        note += f" in each of {micro} micro-batches"
    rows = [
        Row("per replica", best * micro, note=note),
        Row("batch_size", best * programs.smallest, note="over all replicas"),
    ]
    lines = [
        _line(
            rows * micro,
            rows * programs.smallest,
            made,
            topology.chip.hbm_bytes,
        )
        for rows, made in sorted(search.tried.items())
    ]
    return Section(f"largest batch on {topology}", rows, table=lines)


def _line(
    rows: int, batch_size: int, made: Compiled | DoesNotFit, limit: float
) -> dict[str, Row]:
    """A line of what was tried."""
    fits = isinstance(made, Compiled)
    live = made.live_bytes if isinstance(made, Compiled) else None
    found = [
        Row("per replica", rows),
        Row("batch_size", batch_size),
        Row("fits", fits),
        Row("live", live, "bytes"),
        Row("of memory", None if live is None else 100 * live / limit, "%"),
    ]
    if isinstance(made, DoesNotFit):
        found[3] = Row("live", made.needed, note="as the compiler says")
    return {row.name: row for row in found}


class _Search:
    """Compiles for numbers of rows, each at most once.

    Attributes:
        tried: what came of it, by the rows of a replica's micro-batch.
    """

    def __init__(self, programs: Programs, topology: Topology) -> None:
        self._programs = programs
        self._topology = topology
        self.tried: dict[int, Compiled | DoesNotFit] = {}

    def largest(self) -> int:
        """The rows that fit, and would not if there were twice as many."""
        given = self._programs.batch_size // self._programs.smallest
        rows = 2 ** int(math.log2(given))
        first = self._try(rows)
        if isinstance(first, Compiled):
            rows = self._expected(rows, first)
        while isinstance(self._try(rows), DoesNotFit):
            if rows == 1:
                raise UserError(
                    "--fit_batch: not even one example for each replica fits "
                    f"into the memory of a {self._topology.kind} chip."
                )
            rows //= 2
        while rows < _MOST_ROWS and isinstance(self._try(2 * rows), Compiled):
            rows *= 2
        return rows

    def _expected(self, rows: int, made: Compiled) -> int:
        """Where to go on, if each example takes as much memory as it did.

        Only where the search begins: what fits, the compiler says.
        """
        kept = made.alias + made.generated_code
        each = max(made.live_bytes - kept, rows) / rows
        fits = (self._topology.chip.hbm_bytes - kept) / each
        return min(2 ** int(math.log2(max(fits, rows))), _MOST_ROWS)

    def _try(self, rows: int) -> Compiled | DoesNotFit:
        if rows not in self.tried:
            batch_size = rows * self._programs.smallest
            program = self._programs.training(batch_size)
            try:
                self.tried[rows] = compile_for(
                    self._topology,
                    lower(program),
                    name=program.name,
                    replicas=program.replicas,
                )
            except DoesNotFit as error:
                self.tried[rows] = error
        return self.tried[rows]
