"""What it costs many tasks to meet, to stay connected and to leave.

    python -m benchmarks.control_plane [--tasks=40] [--seconds=60]

Real processes join a coordinator on this machine, as before TensorFlow
starts; none of them imports TensorFlow. One is killed and named by all the
others, then the rest of a second run leaves in order. Printed are the time
from the first task's start to the start of the run, the coordinator's CPU
while all send heartbeats, and how long the news of the loss takes.
"""

import json
import os
import pathlib
import signal
import sys
import time

from absl import app, flags

from tests.plugins.control_plane.tasks import Cluster

_TASKS = flags.DEFINE_integer("tasks", 40, "How many workers.", lower_bound=3)
_SECONDS = flags.DEFINE_float("seconds", 60.0, "How long they beat.")
_TICKS = os.sysconf("SC_CLK_TCK")


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


def _meet(cluster: Cluster) -> tuple[list, float]:
    begin = time.monotonic()
    tasks = cluster.start_workers(*range(_TASKS.value))
    for task in tasks:
        task.started()
    return tasks, time.monotonic() - begin


def _lose_one(cluster: Cluster) -> dict[str, float]:
    """All meet, beat for a while, and one of them is killed."""
    tasks, started = _meet(cluster)
    first, *others = tasks
    cpu, begin = _cpu_seconds(first.process.pid), time.monotonic()
    other = _cpu_seconds(others[0].process.pid)
    time.sleep(_SECONDS.value)
    elapsed = time.monotonic() - begin
    share = (_cpu_seconds(first.process.pid) - cpu) / elapsed
    own = (_cpu_seconds(others[0].process.pid) - other) / elapsed
    victim = others.pop()
    name = f"worker {_TASKS.value - 1}"
    for task in (first, *others):
        task.send("wait")
    killed = time.monotonic()
    victim.kill(signal.SIGKILL)
    for task in (first, *others):
        code, text, _ = task.answer()
        if code != 75 or not text.startswith(f"lost {name} ("):
            raise AssertionError(f"{code}: {text}")
    return {
        "seconds to the start": started,
        "coordinator's share of a core": share,
        "another task's share of a core": own,
        "seconds until all name the killed one": time.monotonic() - killed,
    }


def _leave(cluster: Cluster) -> dict[str, float]:
    """All meet again, and leave in order after a barrier."""
    tasks, _ = _meet(cluster)
    begin = time.monotonic()
    for task in tasks:
        task.send("barrier", {}, 60.0)
    for task in tasks:
        code, text, _ = task.answer()
        if code:
            raise AssertionError(text)
        task.process.stdin.close()
    for task in tasks:
        task.process.wait()
    return {"seconds to leave": time.monotonic() - begin}


def main(_: list[str]) -> None:
    """Prints the figures as one line of JSON."""
    found: dict[str, float] = {"tasks": _TASKS.value}
    for part in (_lose_one, _leave):
        cluster = Cluster(_TASKS.value, options={"start_seconds": 300.0})
        try:
            found |= part(cluster)
        finally:
            cluster.end()
    rounded = {name: round(value, 4) for name, value in found.items()}
    sys.stdout.write(f"{json.dumps(rounded)}\n")


if __name__ == "__main__":
    app.run(main)
