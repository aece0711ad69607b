"""Each strategy against the bare `tf.distribute` loop of that strategy.

python -m benchmarks --parts=strategies
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.orders import Task
from benchmarks.turns import CLUSTERS, Measured, take_turns

# By name: devices in each process.
STRATEGIES = {
    "default": 1,
    "one_device": 1,
    "mirrored": 2,
    "central_storage": 2,
    "multi_worker_mirrored": 1,
    "parameter_server": 1,
}
# Peers that run under a strategy at all.
PEERS = {
    "mirrored": ("orbit", "fit"),
    "central_storage": ("orbit",),
    "multi_worker_mirrored": ("orbit",),
}
STEPS = 400
TEXT = [
    "The MLP, the Trainer with its default callbacks against a bare loop of "
    "the same strategy; two devices in one process, two worker processes, or "
    "two workers and a parameter server. Memory is that of all processes of a "
    "run. Orbit and `fit` stand where they run: `fit` of Keras 3 fails under "
    "several workers and parameter servers, and is wrong under central_storage."
]


def measure(
    names: Sequence[str],
    *,
    rounds: int,
    steps: int | None,
    examples: int | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Runs each strategy, one after the other.

    Args:
        names: which of `STRATEGIES`.
        rounds: turns of each side.
        steps: in a turn.
        examples: rows of the arrays; `None` for the model's own.
        tell: is given a line about what goes on.

    Returns:
        The part of the report.
    """
    found: dict[str, Any] = {}
    cells = []
    for name in names:
        tell(f"{name}:")
        tasks = [
            Task(
                contender,
                "mlp",
                steps or STEPS,
                examples=examples,
                strategy=name,
                replicas=STRATEGIES[name],
            )
            for contender in ("trainer", "distribute", *PEERS.get(name, ()))
        ]
        measured, left_out = take_turns(tasks, rounds=rounds, tell=tell)
        if {"trainer", "distribute"} & left_out.keys():
            found[name] = {"left_out": left_out}
            why = "; ".join(f"{k}: {v}" for k, v in left_out.items())
            cells.append((_label(name), *"------", why))
            continue
        ours, bare, *peers = measured
        ratios = _ratios(ours, bare)
        against = {
            one.task.contender: statistics.median(_ratios(ours, one))
            for one in peers
        }
        memory = (
            ours.peak_bytes / bare.peak_bytes
            if ours.peak_bytes and bare.peak_bytes
            else None
        )
        found[name] = {
            "ours": ours.speeds,
            "bare": bare.speeds,
            "ratio": statistics.median(ratios),
            "memory_ratio": memory,
            "against": against,
        }
        cells.append(
            (
                _label(name),
                f"{statistics.median(ours.speeds):.0f}",
                f"{statistics.median(bare.speeds):.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                *(
                    f"{against[peer]:.2f}" if peer in against else "-"
                    for peer in ("orbit", "fit")
                ),
                "-" if memory is None else f"{memory:.2f}",
            )
        )
    return {
        "title": "Strategies",
        "text": TEXT,
        "head": (
            "strategy",
            "Trainer, steps/s",
            "bare, steps/s",
            "Trainer ÷ bare",
            "in the rounds",
            "÷ Orbit",
            "÷ fit",
            "memory, Trainer ÷ bare",
        ),
        "cells": cells,
        "found": found,
    }


def _ratios(ours: Measured, other: Measured) -> list[float]:
    return [a / b for a, b in zip(ours.speeds, other.speeds, strict=True)]


def _label(name: str) -> str:
    if name in CLUSTERS:
        workers, servers = CLUSTERS[name]
        return f"{name}@{workers}" + (f"+{servers}" if servers else "")
    devices = STRATEGIES[name]
    return f"{name}:{devices}" if devices > 1 else name
