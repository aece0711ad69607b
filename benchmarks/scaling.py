"""Step overhead and trace time, against replicas, variables and callbacks.

    python -m benchmarks --parts=scaling

At each point the Trainer and the bare loop of the same strategy train the same
tiny model in turn, and are started anew in each round. Both train in the plain
graph: a trial of other forms is no trace. The step overhead is what a step of
the Trainer takes longer; the trace time is that of building input and graphs,
before the first step.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.orders import Task
from benchmarks.turns import Measured, take_turns

REPLICAS = (1, 2, 4, 8, 16)
VARIABLES = (10, 100, 300, 1_000)
CALLBACKS = (0, 5, 10, 20)
STEPS = 200
TURNS = 2


class Point(NamedTuple):
    """One point of the scaling part."""

    replicas: int = 1
    variables: int = 10
    callbacks: int = 0

    @property
    def strategy(self) -> str:
        """Of several devices, as few copies as they need."""
        return "mirrored" if self.replicas > 1 else "default"


def points(
    replicas: Sequence[int] = REPLICAS,
    variables: Sequence[int] = VARIABLES,
    callbacks: Sequence[int] = CALLBACKS,
) -> Iterator[Point]:
    """One number grows, the others stay small."""
    seen = set()
    for point in (
        *(Point(replicas=one) for one in replicas),
        *(Point(variables=one) for one in variables),
        *(Point(callbacks=one) for one in callbacks),
    ):
        if point not in seen:
            seen.add(point)
            yield point


def measure(
    wanted: Sequence[Point],
    *,
    rounds: int,
    steps: int | None,
    examples: int | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the points, one after the other.

    Args:
        wanted: which.
        rounds: how often each side is started.
        steps: in a turn.
        examples: rows of the arrays; `None` for the model's own.
        tell: is given a line about what goes on.

    Returns:
        The part of the report.
    """
    cells, found = [], []
    for point in wanted:
        label = [str(value) for value in point]
        tell(
            f"{point.replicas} replicas, {point.variables} variables, "
            f"{point.callbacks} callbacks:"
        )
        tasks = [
            Task(
                contender,
                f"variables:{point.variables}",
                steps or STEPS,
                examples=examples,
                strategy=point.strategy,
                replicas=point.replicas,
                callbacks=point.callbacks,
            )
            for contender in ("trainer:graph", "distribute")
        ]
        starts = []
        for number in range(rounds):
            # A process traces once: each start is a sample, and each side is
            # first in half of them.
            order = tasks[::-1] if number % 2 else tasks
            measured, left_out = take_turns(order, rounds=TURNS, tell=tell)
            if left_out:
                break
            starts.append(measured[::-1] if number % 2 else measured)
        if left_out:
            cells.append([*label, *"-----", str(left_out)])
            continue
        values = _compare(starts)
        found.append({**point._asdict(), **values})
        cells.append(
            [
                *label,
                f"{values['bare_step'] * 1e6:.0f}",
                f"{values['overhead'] * 1e6:.0f}",
                f"{values['bare_trace']:.2f}",
                f"{values['trace']:.2f}",
                f"{values['trace_ratio']:.2f}",
                f"{values['first_ratio']:.2f}",
            ]
        )
    return {
        "title": "Scaling",
        "text": [
            "A stack of tiny dense layers, on virtual CPUs where there are "
            "several replicas; callbacks of Keras' kind that do nothing. µs "
            "per step are medians. The last column is the first turn, which "
            "includes what TensorFlow does in a first call."
        ],
        "head": (
            "replicas",
            "variables",
            "callbacks",
            "bare step, µs",
            "overhead, µs",
            "bare trace, s",
            "trace, s",
            "trace ÷ bare",
            "first turn ÷ bare",
        ),
        "cells": cells,
        "found": found,
    }


def _compare(starts: Sequence[Sequence[Measured]]) -> dict[str, float]:
    """Medians over starts of the Trainer and of the bare loop."""

    def median(of: Callable[[Measured, Measured], float]) -> float:
        return statistics.median(of(ours, bare) for ours, bare in starts)

    def step(one: Measured) -> float:
        return statistics.median(one.seconds) / one.task.steps

    def trace(one: Measured) -> float:
        return float(one.facts["trace_seconds"])

    return {
        "bare_step": median(lambda ours, bare: step(bare)),
        "overhead": median(lambda ours, bare: step(ours) - step(bare)),
        "trace": median(lambda ours, bare: trace(ours)),
        "bare_trace": median(lambda ours, bare: trace(bare)),
        "trace_ratio": median(lambda ours, bare: trace(ours) / trace(bare)),
        "first_ratio": median(
            lambda ours, bare: ours.first_seconds / bare.first_seconds
        ),
    }
