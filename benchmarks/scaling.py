"""Step overhead and trace time, against replicas, variables and callbacks.

At each point the Trainer and the bare loop of the same strategy train the same
stack of tiny dense layers in turn, both in the plain graph. The overhead is
what a step of the Trainer takes longer; the trace is the building of input and
graphs, before the first step.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks import table
from benchmarks.orders import Task
from benchmarks.turns import take_turns

STEPS = 200


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


def measure(
    points: Sequence[Point],
    *,
    rounds: int,
    steps: int | None,
    examples: int | None,
    tell: Callable[[str], None],
) -> Iterator[str]:
    """Runs the points, one after the other; yields the table.

    Args:
        points: which.
        rounds: turns of each side.
        steps: in a turn.
        examples: rows of the arrays; `None` for the model's own.
        tell: is given a line about what goes on.
    """
    rows = []
    for point in points:
        label = [str(value) for value in point]
        tell(f"{point}:")
        tasks = [
            Task(
                contender,
                f"variables:{point.variables}",
                steps or STEPS,
                examples=examples,
                strategy="mirrored" if point.replicas > 1 else "default",
                replicas=point.replicas,
                callbacks=point.callbacks,
            )
            for contender in ("trainer:graph", "distribute")
        ]
        measured, left_out = take_turns(tasks, rounds=rounds, tell=tell)
        if left_out:
            rows.append([*label, *"---", str(left_out)])
            continue
        ours, bare = (
            statistics.median(one.seconds) / one.task.steps * 1e6
            for one in measured
        )
        trace, bare_trace = (one.facts["trace_seconds"] for one in measured)
        rows.append(
            [
                *label,
                f"{bare:.0f}",
                f"{ours - bare:.0f}",
                f"{trace:.2f}",
                f"{trace / bare_trace:.2f}",
            ]
        )
    yield from table.as_table(
        (
            "replicas",
            "variables",
            "callbacks",
            "bare step, µs",
            "overhead, µs",
            "trace, s",
            "trace ÷ bare",
        ),
        rows,
    )
