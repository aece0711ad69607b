"""Keeps counters of steps exact where a step may be done twice.

What a worker had done of a closure when it died is done again by another one.
Its updates stay in the weights, but a step must count once: in the learning
rate's schedule, in checkpoints, and in what data is read.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging


class StepCounts:
    """The variables of a run that count its steps.

    They are found by what they do: integer scalars that grow by one with each
    update, such as an optimizer's `iterations`.
    """

    def __init__(self) -> None:
        self._candidates: list[tf.Variable] = []

    def note(self, create: Callable[..., Any], **options: Any) -> Any:
        """A variable creator that remembers what may count steps."""
        variable = create(**options)
        if variable.dtype.is_integer and variable.shape.rank == 0:
            self._candidates.append(variable)
        return variable

    def values(self) -> list[int]:
        """The present value of each."""
        return [int(variable.numpy()) for variable in self._candidates]

    def correct(
        self,
        before: list[int],
        *,
        updates: tf.Variable,
        num_steps: int,
        losses: int,
    ) -> None:
        """Takes back what counts more than once.

        A worker may die when one counter has its step and another has not:
        nothing orders them. So each is set right by itself, and one that is
        out of step with `updates` by more than that is no counter of steps.

        Args:
            before: `values` before some steps.
            updates: the one that counts every update; it is corrected, too.
            num_steps: how many steps those were.
            losses: how many workers were lost meanwhile.
        """
        # A variable that was made meanwhile has not counted all of them.
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
        # The one who does a lost worker's steps may be faster than the news.
        apart = max(losses, 1)
        most = num_steps
        for variable, grown in zip(known, growth, strict=True):
            if grown > num_steps and abs(grown - done) <= apart:
                variable.assign_sub(grown - num_steps)
                most = max(most, grown)
        if most > num_steps:
            logging.warning(
                "A worker was lost: %d steps were done twice.", most - num_steps
            )
