"""Medians, spreads and ratios, as JSON and as Markdown."""

import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from benchmarks import contenders
from benchmarks.turns import Measured

_PACKAGES = (
    "tensorflow-cpu",
    "tensorflow",
    "keras",
    "jax",
    "torch",
    "lightning",
    "tf-models-official",
)
_MEGABYTE = 1_000_000


def machine() -> dict[str, Any]:
    """Where it was measured: processor, cores, versions."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def rows(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """One row for each contender of a model, as JSON values.

    Its `ratio` is how many times as fast the first contender is. It is the
    median over the rounds of the ratio within a round, so that a machine that
    slows down during a run does not change it.
    """
    result = []
    for one in found:
        speeds = one.speeds
        ratios = [
            first / other
            for first, other in zip(found[0].speeds, speeds, strict=False)
        ]
        median = statistics.median(speeds)
        result.append(
            {
                "contender": one.task.contender,
                "title": contenders.title(one.task.contender),
                "steps_in_a_turn": one.task.steps,
                "steps_per_second": speeds,
                "median": median,
                "spread": (max(speeds) - min(speeds)) / median,
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "peak_bytes": one.peak_bytes,
                "peak_ratio": _peak_ratio(found[0], one),
                "ready_seconds": one.ready_seconds,
                "first_turn_seconds": one.first_seconds,
                **one.facts,
            }
        )
    return result


def _peak_ratio(first: Measured, other: Measured) -> float | None:
    if first.peak_bytes is None or other.peak_bytes is None:
        return None
    return first.peak_bytes / other.peak_bytes


def markdown(report: Mapping[str, Any]) -> str:
    """The whole report, for docs/performance.md or a terminal."""
    made = report["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in made["versions"].items())
    lines = [
        f"Made by `{report['command']}` on {report['date']}, on "
        f"{made['cores']} cores of {made['processor']}, Python "
        f"{made['python']}, {versions}.",
    ]
    if report.get("note"):
        lines += ["", report["note"]]
    for name, part in report["speed"].items():
        lines += ["", f"### {part['title']}", "", *_speed(name, part)]
    for name in ("strategies", "scaling", "communication", "startup", "goals"):
        if report.get(name) and report[name]["cells"]:
            lines += ["", f"### {report[name]['title']}", ""]
            lines += list(_plain(report[name]))
    return "\n".join(lines) + "\n"


def _speed(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    found = part["rows"]
    if found:
        yield (
            f"`--models={name}`: {len(found[0]['steps_per_second'])} rounds of "
            f"{found[0]['steps_in_a_turn']} steps."
        )
        yield ""
        yield from as_table(
            (
                "contender",
                "steps/s",
                "spread",
                f"{found[0]['title']} ÷ it",
                "peak MB",
                "ready s",
            ),
            [
                (
                    f"{row['title']} ({row['form']})"
                    if "form" in row and ":" not in row["contender"]
                    else row["title"],
                    f"{row['median']:.0f}"
                    if row["median"] >= 100
                    else f"{row['median']:.1f}",
                    f"{row['spread']:.0%}",
                    f"{row['ratio']:.2f}",
                    "-"
                    if row["peak_bytes"] is None
                    else f"{row['peak_bytes'] / _MEGABYTE:.0f}",
                    f"{row['ready_seconds']:.1f}",
                )
                for row in found
            ],
        )
    if part["left_out"]:
        yield ""
        yield (
            "Left out: "
            + "; ".join(
                f"{contenders.title(one)} ({why})"
                for one, why in part["left_out"].items()
            )
            + "."
        )


def _plain(part: Mapping[str, Any]) -> Iterator[str]:
    """A part that brings its own cells."""
    if part["text"]:
        yield from (*part["text"], "")
    yield from as_table(part["head"], part["cells"])


def as_table(
    head: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    """A table in Markdown, the first column to the left."""
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in cells:
        yield "| " + " | ".join(row) + " |"
