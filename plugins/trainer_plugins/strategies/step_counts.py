"""Keeps step counters exact where a step may run twice.

When a worker dies within a closure, another worker repeats the closure from
its start. The first worker's updates stay in the weights, but each step must
count once: in the learning rate schedule, in checkpoints and in the position
in the data.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from trainer_plugins.strategies.read_at_once import ReadAtOnce


class StepCounts:
    """The variables of a run that count its steps.

    They are recognized by their behavior: integer scalars that grow by one
    with each update, such as an optimizer's `iterations`.
    """

    def __init__(self) -> None:
        self._candidates: list[tf.Variable] = []
        self._read: ReadAtOnce | None = None

    def note(self, create: Callable[..., Any], **options: Any) -> Any:
        """A variable creator that records variables that may count steps."""
        variable = create(**options)
        if variable.dtype.is_integer and variable.shape.rank == 0:
            self._candidates.append(variable)
        return variable

    def values(self) -> list[int]:
        """Returns the current value of each candidate."""
        if self._read is None or self._read.count < len(self._candidates):
            self._read = ReadAtOnce(self._candidates)
        return [int(value) for value in self._read()]

    def correct(
        self,
        before: list[int],
        *,
        updates: tf.Variable,
        num_steps: int,
        losses: int,
    ) -> None:
        """Subtracts the steps that were counted more than once.

        A worker may die when one counter has counted its step and another
        has not, because their updates are unordered. So each counter is
        corrected on its own. A variable that differs from `updates` by more
        than that is not a step counter.

        Args:
            before: `values` before these steps.
            updates: the variable that counts every update; corrected, too.
            num_steps: how many steps were run.
            losses: how many workers were lost meanwhile.
        """
        # A variable created in the meantime has not counted all of the steps.
        pairs = zip(self.values(), before, strict=False)
        growth = [now - then for now, then in pairs]
        known = self._candidates[: len(growth)]
        done = next(
            grown
            for variable, grown in zip(known, growth, strict=True)
            if variable is updates
        )
        if done <= num_steps and not losses:
            return
        # Another worker may repeat the steps before the loss is detected, so
        # allow for one even if no loss is known yet.
        apart = max(losses, 1)
        # The largest count is what was run in fact; the rest is for the log.
        most = num_steps
        for variable, grown in zip(known, growth, strict=True):
            if grown > num_steps and abs(grown - done) <= apart:
                variable.assign_sub(grown - num_steps)
                most = max(most, grown)
        if most > num_steps:
            logging.warning(
                "A worker was lost: %d steps were run twice.", most - num_steps
            )
