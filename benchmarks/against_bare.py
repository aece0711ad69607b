"""The Trainer against the bare `tf.distribute` loop of the same strategy.

*Strategies*: the MLP; two devices in one process, two worker processes, or two
workers and a parameter server. *Scaling*: step overhead and trace time of a
stack of tiny dense layers in the plain graph, against replicas, variables and
callbacks. The overhead is what a step of the Trainer takes longer; the trace is
the building of input and graphs, before the first step.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import table
from benchmarks.orders import Task
from benchmarks.turns import Measured, take_turns

# By name: devices in each process.
STRATEGIES = {
    "default": 1,
    "mirrored": 2,
    "central_storage": 2,
    "multi_worker_mirrored": 1,
    "parameter_server": 1,
}
# In a turn, unless the command line says otherwise.
_OF_STRATEGIES, _OF_SCALING = 400, 200


class Point(NamedTuple):
    """One point; of the three numbers one grows, and the others are small."""

    replicas: int = 1
    variables: int = 10
    callbacks: int = 0


POINTS = (
    Point(),
    *(Point(replicas=one) for one in (2, 4, 8, 16)),
    *(Point(variables=one) for one in (100, 300, 1_000)),
    *(Point(callbacks=one) for one in (5, 20)),
)


def strategies(
    names: Sequence[str], *, steps: int | None, **common: Any
) -> Iterator[str]:
    """Runs strategies, one after the other; yields the table.

    Args:
        names: which of `STRATEGIES`.
        steps: in a turn; `None` for the usual number.
        **common: see `_measure`.
    """
    tasks = {
        (name,): Task(
            "trainer",
            "mlp",
            steps or _OF_STRATEGIES,
            strategy=name,
            replicas=STRATEGIES[name],
        )
        for name in names
    }

    def row(ours: Measured, bare: Measured) -> Sequence[str]:
        ratios = table.ratios(ours, bare)
        return (
            f"{statistics.median(ours.speeds):.0f}",
            f"{statistics.median(bare.speeds):.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{(ours.peak_bytes or 0) / (bare.peak_bytes or 1):.2f}",
        )

    head = (
        "strategy",
        "Trainer, steps/s",
        "bare, steps/s",
        "Trainer ÷ bare",
        "in the rounds",
        "memory, Trainer ÷ bare",
    )
    yield from table.as_table(head, _measure(tasks, row, **common))


def scaling(*, steps: int | None, **common: Any) -> Iterator[str]:
    """Runs `POINTS`, one after the other; yields the table.

    Args:
        steps: in a turn; `None` for the usual number.
        **common: see `_measure`.
    """
    tasks = {
        tuple(map(str, point)): Task(
            "trainer:graph",
            f"variables:{point.variables}",
            steps or _OF_SCALING,
            strategy="mirrored" if point.replicas > 1 else "default",
            replicas=point.replicas,
            callbacks=point.callbacks,
        )
        for point in POINTS
    }

    def row(ours: Measured, bare: Measured) -> Sequence[str]:
        step, bare_step = (
            statistics.median(one.seconds) / one.task.steps * 1e6
            for one in (ours, bare)
        )
        trace, bare_trace = (one.facts["trace_seconds"] for one in (ours, bare))
        return (
            f"{bare_step:.0f}",
            f"{step - bare_step:.0f}",
            f"{trace:.2f}",
            f"{trace / bare_trace:.2f}",
        )

    head = (
        *("replicas", "variables", "callbacks"),
        *("bare step, µs", "overhead, µs", "trace, s", "trace ÷ bare"),
    )
    yield from table.as_table(head, _measure(tasks, row, **common))


def _measure(
    tasks: Mapping[Any, Task],
    row: Callable[[Measured, Measured], Sequence[str]],
    *,
    rounds: int,
    examples: int | None,
    tell: Callable[[str], None],
) -> list[Sequence[str]]:
    """Runs the Trainer and the bare loop in turn.

    Args:
        tasks: of the Trainer, by the first cells of a row.
        row: makes the other cells of what both have shown.
        rounds: turns of each side.
        examples: rows of the arrays; `None` for the model's own.
        tell: is given a line about what goes on.
    """
    rows: list[Sequence[str]] = []
    for label, task in tasks.items():
        tell(f"{', '.join(label)}:")
        task = task._replace(examples=examples)
        sides = [task, task._replace(contender="distribute")]
        measured, left_out = take_turns(sides, rounds=rounds, tell=tell)
        # One that was left out has no numbers, but a reason.
        found = (str(left_out),) if left_out else row(*measured)
        rows.append((*label, *found))
    return rows
