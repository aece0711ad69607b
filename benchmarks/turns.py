"""Takes turns: each contender is a process, and one of them works at a time.

Contenders cannot share a process: Keras has one backend per process, and each
library its own pools of threads. All of them are started, built, traced and
warmed up by one turn that is not counted; then they train in turn, in several
rounds. Between its turns a contender waits in a read of a pipe.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from benchmarks.orders import Task
from benchmarks.process import Process, Refused
from trainer.launch.main import cluster_environ, held_ports

# Who takes longer is left out.
START_SECONDS = 300.0
TURN_SECONDS = 120.0
# By strategy: workers, and parameter servers.
CLUSTERS = {"multi_worker_mirrored": (2, 0), "parameter_server": (2, 1)}


@dataclasses.dataclass
class Measured:
    """What one contender has shown.

    Attributes:
        task: what it trained.
        seconds: of each turn that counts.
        peak_bytes: the most memory that its processes had, added up; `None`
            where that is not known.
        ready_seconds: from its command to its first turn.
        facts: what it said of itself, such as `trace_seconds`.
    """

    task: Task
    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int | None = None
    ready_seconds: float = 0.0
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def speeds(self) -> list[float]:
        """Steps per second of each turn."""
        return [self.task.steps / seconds for seconds in self.seconds]


class Contender:
    """The processes of one contender, as a context.

    Args:
        task: what it trains.
        folder: for its logs and all other files; somebody else removes it.

    Raises:
        Refused: it cannot take part.
    """

    def __init__(self, task: Task, folder: str) -> None:
        self.measured = Measured(task)
        self._exit = contextlib.ExitStack()
        self._folder = pathlib.Path(folder)
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        task = self.measured.task
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            for number, environ in enumerate(_environments(task, stack)):
                log = self._folder / f"{number}.log"
                # It ends without removing its files.
                inside = {**environ, "TMPDIR": str(self._folder)}
                process = Process(task, log, inside)
                stack.callback(process.end)
                self._processes.append(process)
            facts = [one.answer(START_SECONDS) for one in self._training]
            self.measured.facts = facts[0]
            self.measured.ready_seconds = time.perf_counter() - began
            self._turn()
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.end()

    def end(self) -> None:
        """Ends its processes."""
        self._exit.close()

    def turn(self) -> None:
        """Takes one turn, which counts."""
        self.measured.seconds.append(self._turn())
        peaks = [one.peak_bytes() for one in self._processes]
        known = [peak for peak in peaks if peak is not None]
        self.measured.peak_bytes = sum(known) if known == peaks else None

    @property
    def _training(self) -> Sequence[Process]:
        """Those that take turns; servers only serve."""
        _, servers = CLUSTERS.get(self.measured.task.strategy, (1, 0))
        return self._processes[:1] if servers else self._processes

    def _turn(self) -> float:
        for one in self._training:
            one.go()
        answers = [one.answer(TURN_SECONDS) for one in self._training]
        # Such as the form of the newest steps.
        self.measured.facts |= answers[0]
        return max(answer["seconds"] for answer in answers)


def _environments(
    task: Task, stack: contextlib.ExitStack
) -> Iterator[Mapping[str, str]]:
    """Variables for each process of a contender, the first one first."""
    shared = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
    if task.contender.partition(":")[0] == "keras_jax":
        shared["KERAS_BACKEND"] = "jax"
    if task.strategy not in CLUSTERS:
        yield shared
        return
    workers, servers = CLUSTERS[task.strategy]
    workers = task.workers or workers
    counts = {"chief": int(servers > 0), "worker": workers, "ps": servers}
    ports = stack.enter_context(held_ports(1 + sum(counts.values())))
    for _, _, environ in cluster_environ(counts, ports):
        yield {**shared, **environ}


def take_turns(
    tasks: Sequence[Task],
    *,
    rounds: int,
    tell: Callable[[str], None],
) -> tuple[list[Measured], dict[str, str]]:
    """Runs contenders in turn.

    Args:
        tasks: what each of them trains.
        rounds: how many turns of each count.
        tell: is given a line about what goes on.

    Returns:
        What those that took part have shown, and why others did not, by name.
    """
    left_out: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        present: list[Contender] = []
        for task in tasks:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            try:
                contender = Contender(task, folder)
                present.append(stack.enter_context(contender))
            except Refused as reason:
                left_out[task.contender] = str(reason)
                tell(f"  {task.contender}: left out, {reason}")
        for number in range(rounds):
            # None is always behind the same other.
            shift = number % max(1, len(present))
            for contender in present[shift:] + present[:shift]:
                try:
                    contender.turn()
                except Refused as reason:
                    name = contender.measured.task.contender
                    left_out[name] = f"{reason}, in round {number + 1}"
                    tell(f"  {name}: {left_out[name]}")
                    # It may be at work still, and not in its turn.
                    contender.end()
                    present.remove(contender)
            speeds = ", ".join(
                f"{one.measured.task.contender} {one.measured.speeds[-1]:.0f}"
                for one in present
            )
            tell(f"  round {number + 1} of {rounds}: {speeds} steps/s")
    return [one.measured for one in present], left_out
