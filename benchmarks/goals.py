"""What the numbers have to be, and whether they are.

A ratio counts within one run of `python -m benchmarks`, and only for what was
measured in it.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """One goal, and what was found.

    Attributes:
        what: in words.
        found: the number; a ratio, or seconds.
        bound: what it has to be.
        at_least: whether the bound is from below.
    """

    what: str
    found: float
    bound: float
    at_least: bool

    @property
    def is_met(self) -> bool:
        """Whether the number is within its bound."""
        if self.at_least:
            return self.found >= self.bound
        return self.found <= self.bound


# The forms of the bare loop that are the same as one of the Trainer's; what
# `jit_compile` is, or which form "auto" has chosen.
_SAME_FORM = {
    "graph": ("bare", "bare:gather"),
    "xla": ("bare:xla", "bare:xla+gather"),
    "xla_stack": ("bare:stacked", "bare:stacked+device"),
}

# How many times as fast as each peer a small network is to be; any other model
# only as fast.
_OF_MLP: dict[str, float | None] = {
    "bare": 3,
    "bare:xla": None,
    "bare:xla+gather": None,
    "bare:stacked": None,
    "bare:stacked+device": None,
    "orbit": 3,
    "fit": 3,
    "fit:xla": 2,
    "keras_jax": 1.5,
    "pytorch": 3,
    "lightning": 3,
}
_STRATEGIES = (
    "mirrored",
    "central_storage",
    "multi_worker_mirrored",
    "parameter_server",
)


def part(report: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the report about goals."""
    goals = list(_all(report))
    return {
        "title": "Goals",
        "text": [],
        "head": ("goal", "found", "bound", "met"),
        "cells": [
            (
                goal.what,
                f"{goal.found:.2f}",
                f"{'≥' if goal.at_least else '≤'} {goal.bound:g}",
                "yes" if goal.is_met else "no",
            )
            for goal in goals
        ],
    }


def _all(report: Mapping[str, Any]) -> Iterator[Goal]:
    for name, found in report["speed"].items():
        yield from _speed(name, found["rows"])
    strategies = report.get("strategies") or {"found": {}}
    for name, values in strategies["found"].items():
        if name in _STRATEGIES and "ratio" in values:
            what = f"{name}: speed, Trainer ÷ bare"
            yield Goal(what, values["ratio"], 0.95, at_least=True)
            for peer, ratio in values.get("against", {}).items():
                what = f"{name}: speed, Trainer ÷ {peer}"
                yield Goal(what, ratio, 1.2, at_least=True)
    scaling = report.get("scaling") or {"found": []}
    ratios = [point["trace_ratio"] for point in scaling["found"]]
    if ratios:
        what = "trace time, Trainer ÷ bare, the worst point"
        yield Goal(what, max(ratios), 1.1, at_least=False)
    startup = report.get("startup")
    if startup:
        seconds = {
            name: statistics.median(values)
            for name, values in startup["seconds"].items()
        }
        yield Goal("`--help`, s", seconds["`--help`"], 0.5, at_least=False)
        what = "config error, s"
        yield Goal(what, seconds["config error"], 1.5, at_least=False)
        what = "command to first step, Trainer ÷ bare script"
        yield Goal(what, startup["first_step_ratio"], 1.15, at_least=False)


def _speed(model: str, rows: list[dict[str, Any]]) -> Iterator[Goal]:
    if not rows or not rows[0]["contender"].startswith("trainer"):
        return
    by_name = {row["contender"]: row for row in rows}
    for peer, row in by_name.items():
        kind = peer.partition(":")[0]
        bound = _OF_MLP.get(peer, _OF_MLP.get(kind)) if model == "mlp" else 1
        if kind != "trainer" and bound is not None:
            what = f"{model}: speed, Trainer ÷ {row['title']}"
            yield Goal(what, row["ratio"], bound, at_least=True)
    bare = {
        name: row
        for name, row in by_name.items()
        if name.partition(":")[0] == "bare"
    }
    if not bare:
        return
    for ours in (n for n in by_name if n.partition(":")[0] == "trainer"):
        row = by_name[ours]
        form = ours.partition(":")[2] or row.get("form", "")
        same = _SAME_FORM.get(form)
        peers = {n: r for n, r in bare.items() if same is None or n in same}
        if not peers:
            continue
        fastest = max(peers.values(), key=lambda row: row["median"])
        ratio = statistics.median(
            a / b
            for a, b in zip(
                row["steps_per_second"],
                fastest["steps_per_second"],
                strict=False,
            )
        )
        what = f"{model}: speed, {row['title']} ÷ fastest {fastest['title']}"
        yield Goal(what, ratio, 0.97, at_least=True)
        if row["peak_bytes"] and fastest["peak_bytes"]:
            memory = row["peak_bytes"] / fastest["peak_bytes"]
            what = f"{model}: peak memory, {row['title']} ÷ {fastest['title']}"
            yield Goal(what, memory, 1.1, at_least=False)
