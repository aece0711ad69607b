"""Communication time at 8, 64 and 512 replicas, on paper.

    python -m benchmarks --parts=communication

The bytes are measured: a strategy with two replicas notes what each of its
reductions is handed while a step is traced. The rest is arithmetic. A ring
all-reduce of B bytes over n replicas sends 2 (n - 1) / n B bytes from each of
them in 2 (n - 1) hops, and so takes

    2 (n - 1) / n * B / bandwidth + 2 (n - 1) * latency

Nothing overlaps with it here. TensorFlow and the hardware may do better, with
trees and with rings inside of a host; the model says what to expect at most.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import models
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


def seconds(size: float, replicas: int, link: Link) -> float:
    """The time of a ring all-reduce.

    Args:
        size: bytes that each replica contributes.
        replicas: how many there are.
        link: what connects each to the next.
    """
    hops = 2 * (replicas - 1)
    return hops / replicas * size / link.bandwidth + hops * link.latency


def measure(*, names: list[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measures the bytes of each model, and works out the times.

    Returns:
        The part of the report.
    """
    found: dict[str, Any] = {}
    cells = []
    for name in names:
        sizes = {side: _bytes(side, name) for side in ("ours", "bare")}
        tell(f"  {name}: {sizes} bytes a step")
        times = {
            link.name: [seconds(sizes["ours"], n, link) for n in REPLICAS]
            for link in LINKS
        }
        found[name] = {"bytes": sizes, "seconds": times}
        cells += [
            (
                name,
                f"{sizes['ours']:,}",
                f"{sizes['bare']:,}",
                link,
                *(f"{one * 1e3:.2f}" for one in of_link),
            )
            for link, of_link in times.items()
        ]
    return {
        "title": "Communication, on paper",
        "text": [
            "Bytes that a replica hands to reductions in one step, measured in "
            "the traced step, and the milliseconds of a ring all-reduce of the "
            "Trainer's bytes: 2 (n - 1) / n · bytes / bandwidth + 2 (n - 1) · "
            "latency. Nothing of this was run on that many replicas. "
            "Bandwidth and latency of a link are assumed: "
            + "; ".join(
                f"{link.name}, {link.bandwidth / 1e9:g} GB/s and "
                f"{link.latency * 1e6:g} µs"
                for link in LINKS
            )
            + "."
        ],
        "head": (
            "model",
            "Trainer, bytes",
            "bare, bytes",
            "link",
            *(f"{n} replicas, ms" for n in REPLICAS),
        ),
        "cells": cells,
        "found": found,
    }


def _bytes(side: str, model: str) -> int:
    command = [sys.executable, "-m", "benchmarks.reductions", side, model]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return int(json.loads(done.stdout.splitlines()[-1])["bytes"])


def default_models() -> list[str]:
    """All of them: it is a trace each."""
    return list(models.MODELS)
