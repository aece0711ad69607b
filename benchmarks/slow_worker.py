"""Parameter servers with two workers, of which one is slow.

The slow one has the processor for a tenth of the time: it is stopped for the
rest. *Alone* has the other worker only, which a slow one must not hold up. The
Trainer and a bare `ClusterCoordinator`, with one step in a closure and a join
after each host loop, take turns.
"""

import contextlib
import signal
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator

from benchmarks import contenders, table
from benchmarks.orders import Task
from benchmarks.turns import Contender

_MODEL, _STEPS = "conv_net", 200
# Of a host loop.
_LOOPS = (100, 4)
# Short beside a step.
_PERIOD, _SHARE = 0.02, 0.1


class Slowed(Contender):
    """A cluster whose last worker is slow in every turn."""

    def turn(self) -> None:
        """See `Contender.turn`."""
        over = threading.Event()
        thread = threading.Thread(target=self._stop_and_go, args=(over,))
        thread.start()
        try:
            super().turn()
        finally:
            over.set()
            thread.join()

    def _stop_and_go(self, over: threading.Event) -> None:
        # The chief, the workers, then the server.
        slow = self._processes[-2]
        while not over.wait(_SHARE * _PERIOD):
            slow.signal(signal.SIGSTOP)
            over.wait((1 - _SHARE) * _PERIOD)
            slow.signal(signal.SIGCONT)


def measure(
    *, rounds: int, steps: int | None, tell: Callable[[str], None]
) -> Iterator[str]:
    """Measures each side with and without the slow worker; yields the table.

    Args:
        rounds: turns of each.
        steps: in a turn; `None` for the usual number.
        tell: is given a line about what goes on.
    """
    rows = []
    for loop in _LOOPS:
        for name in ("trainer", "distribute:1"):
            task = Task(
                name,
                _MODEL,
                steps or _STEPS,
                strategy="parameter_server",
                loop=loop,
            )
            with contextlib.ExitStack() as stack:
                sides = []
                for kind, workers in ((Contender, 1), (Slowed, 2)):
                    folder = stack.enter_context(tempfile.TemporaryDirectory())
                    side = kind(task._replace(workers=workers), folder)
                    sides.append(stack.enter_context(side))
                for number in range(rounds):
                    for side in sides:
                        side.turn()
                    speeds = [side.measured.speeds[-1] for side in sides]
                    tell(f"  {name}, {loop}, round {number + 1}: {speeds}")
            alone, slowed = (side.measured for side in sides)
            ratios = table.ratios(slowed, alone)
            rows.append(
                (
                    contenders.find(name).title,
                    str(loop),
                    f"{statistics.median(alone.speeds):.0f}",
                    f"{statistics.median(slowed.speeds):.0f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                )
            )
    head = (
        *("contender", "steps in a host loop", "alone, steps/s"),
        *("with a slow worker", "ratio", "in the rounds"),
    )
    yield from table.as_table(head, rows)
