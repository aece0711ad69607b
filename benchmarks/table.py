"""Medians, spreads and ratios, as Markdown."""

import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from benchmarks import contenders
from benchmarks.turns import Measured

_PACKAGES = ("tensorflow-cpu", "tensorflow", "keras", "jax", "torch")


def machine() -> str:
    """Where it was measured: cores and versions."""
    installed = {one.name: one.version for one in metadata.distributions()}
    versions = [f"{p} {installed[p]}" for p in _PACKAGES if p in installed]
    return (
        f"On {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}, {', '.join(versions)}."
    )


def ratios(first: Measured, other: Measured) -> list[float]:
    """How many times as fast the first is, in each round.

    A machine that slows down during a run does not change these.
    """
    pairs = zip(first.speeds, other.speeds, strict=False)
    return [one / two for one, two in pairs]


def of_speed(
    measured: Sequence[Measured], left_out: Mapping[str, str]
) -> Iterator[str]:
    """A row for each contender of a model, and who was left out."""
    rows = []
    for one in measured:
        median = statistics.median(one.speeds)
        name = contenders.find(one.task.contender).title
        if "form" in one.facts and not one.task.form:
            name += f" ({one.facts['form']})"
        ratio = statistics.median(ratios(measured[0], one))
        spread = (max(one.speeds) - min(one.speeds)) / median
        peak = one.peak_bytes
        rows.append(
            (
                name,
                f"{median:.0f}" if median >= 100 else f"{median:.1f}",
                f"{spread:.0%}",
                f"{ratio:.2f}",
                "-" if peak is None else f"{peak / 1e6:.0f}",
                f"{one.ready_seconds:.1f}",
            )
        )
    if rows:
        yield from as_table(
            (
                "contender",
                "steps/s",
                "spread",
                f"{contenders.find(measured[0].task.contender).title} ÷ it",
                "peak MB",
                "ready s",
            ),
            rows,
        )
    for name, why in left_out.items():
        yield f"Left out: {contenders.find(name).title} ({why})."


def as_table(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """A table in Markdown, the first column to the left."""
    yield ""
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
