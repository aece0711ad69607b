"""Communication time at 8, 64 and 512 replicas, on paper.

    python -m benchmarks --parts=communication

Bytes and reductions are measured: a strategy with two replicas notes what it is
to reduce while a step is traced. The rest is arithmetic. A ring all-reduce of B
bytes over n replicas sends 2 (n - 1) / n B bytes from each of them in 2 (n - 1)
hops, so that R of them, of B bytes together, take

    2 (n - 1) / n * B / bandwidth + R * 2 (n - 1) * latency

Nothing overlaps with it here. TensorFlow and the hardware may do better, with
trees and with rings inside of a host; the model says what to expect at most.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.process import ROOT

REPLICAS = (8, 64, 512)


class Link(NamedTuple):
    """How replicas are connected: stated, not measured.

    Attributes:
        name: what it is.
        bandwidth: bytes per second of one replica, in one direction.
        latency: seconds for one hop.
    """

    name: str
    bandwidth: float
    latency: float


LINKS = (
    Link("10 Gbit/s Ethernet", 1.25e9, 50e-6),
    Link("100 Gbit/s Ethernet", 12.5e9, 20e-6),
    Link("TPU v5e interconnect", 45e9, 1e-6),
    Link("NVLink 4", 450e9, 2e-6),
)


def seconds(
    size: float, replicas: int, link: Link, *, reductions: int = 1
) -> float:
    """The time of all-reduces along a ring.

    Args:
        size: bytes that each replica contributes to all of them together.
        replicas: how many there are.
        link: what connects each to the next.
        reductions: how many all-reduces, one after the other.
    """
    hops = 2 * (replicas - 1)
    sending = hops / replicas * size / link.bandwidth
    return sending + reductions * hops * link.latency


def measure(*, names: list[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measures the bytes of each model, and works out the times.

    Returns:
        The part of the report.
    """
    found: dict[str, Any] = {}
    cells = []
    for name in names:
        ours, bare = (_of_a_step(side, name) for side in ("ours", "bare"))
        tell(f"  {name}: {ours}; bare {bare}")
        times = {
            link.name: [
                seconds(ours["bytes"], n, link, reductions=ours["reductions"])
                for n in REPLICAS
            ]
            for link in LINKS
        }
        found[name] = {"ours": ours, "bare": bare, "seconds": times}
        cells += [
            (
                name,
                f"{ours['bytes']:,} in {ours['reductions']}",
                f"{bare['bytes']:,} in {bare['reductions']}",
                link,
                *(f"{one * 1e3:.2f}" for one in of_link),
            )
            for link, of_link in times.items()
        ]
    return {
        "title": "Communication, on paper",
        "text": [
            "Bytes that a replica hands to reductions in one step, and in how "
            "many, measured in the traced step of two replicas; and the "
            "milliseconds of ring all-reduces of the Trainer's: 2 (n - 1) / n "
            "· bytes / bandwidth + reductions · 2 (n - 1) · latency. Nothing "
            "of this was run on that many replicas. Bandwidth and latency of "
            "a link are assumed: "
            + "; ".join(
                f"{link.name}, {link.bandwidth / 1e9:g} GB/s and "
                f"{link.latency * 1e6:g} µs"
                for link in LINKS
            )
            + ". BatchNormalization in a Trainer takes its statistics over "
            "all replicas, in reductions of their own, unless "
            "`Trainer.sync_batch_norm` is off. The gradient of an embedding is "
            "sparse here: it has the rows that 32 examples look up. "
            "`multi_worker_mirrored` sends all rows."
        ],
        "head": (
            "model",
            "Trainer, bytes in reductions",
            "bare",
            "link",
            *(f"{n} replicas, ms" for n in REPLICAS),
        ),
        "cells": cells,
        "found": found,
    }


def _of_a_step(side: str, model: str) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.reductions", side, model]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
