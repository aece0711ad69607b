"""A contender's end: what it is to run, and when it is its turn."""

import json
import os
import time
from typing import IO, Any, NamedTuple


class Task(NamedTuple):
    """What a contender is to train.

    Attributes:
        contender: its name, with its form after a colon, such as `bare:xla`.
        model: see `benchmarks.models.find`.
        steps: in a turn.
        examples: rows of the arrays; `None` for those of the model.
        strategy: which `tf.distribute` strategy, by the Trainer's name for it.
        replicas: devices in this process.
        callbacks: how many of Keras' kind, which do nothing; `None` for the
            callbacks of `experiments/base.gin`.
        workers: of a cluster; `None` for two.
        loop: see `unit`; `None` for up to 100.
    """

    contender: str
    model: str
    steps: int
    examples: int | None = None
    strategy: str = "default"
    replicas: int = 1
    callbacks: int | None = None
    workers: int | None = None
    loop: int | None = None

    @property
    def form(self) -> str:
        """What is behind the colon of the contender's name."""
        return self.contender.partition(":")[2]

    @property
    def unit(self) -> int:
        """How many steps are made in one call, or between two logs."""
        return self.loop or min(100, self.steps)


class Orders:
    """Waits for the word of the process that takes the turns.

    Args:
        orders: a file descriptor to read from.
        answers: a file descriptor to write to.
    """

    def __init__(self, orders: int, answers: int) -> None:
        self._orders: IO[str] = os.fdopen(orders, "r")
        self._answers: IO[str] = os.fdopen(answers, "w")
        self._began: float | None = None

    def wait(self, **facts: Any) -> None:
        """Ends a turn, and returns when the next one begins.

        The process ends here, without anything else, when there is none.

        Args:
            facts: what the table may need, as JSON values.
        """
        if self._began is not None:
            facts["seconds"] = time.perf_counter() - self._began
        self._say(facts)
        if not self._orders.readline():
            os._exit(0)
        self._began = time.perf_counter()

    def serve(self) -> None:
        """Waits until there are no more turns, and ends the process."""
        self._orders.read()
        os._exit(0)

    def refuse(self, reason: str) -> None:
        """Says why there will be no turn."""
        self._say({"refused": reason})

    def _say(self, facts: dict[str, Any]) -> None:
        self._answers.write(json.dumps(facts) + "\n")
        self._answers.flush()
