"""Counts of the chief: steps, exact where one may run twice, and staleness.

When a worker dies within a closure, another worker repeats the closure from
its start. The first worker's updates stay in the weights, but each step must
count once: in the learning rate schedule, in checkpoints and in the position
in the data.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

# How the names of operations begin that change a variable.
_CHANGES = ("Assign", "ResourceApply", "ResourceSparse", "ResourceScatter")


class StepCounts:
    """The variables of a run that count its steps.

    They are recognized by their behavior: integer scalars that grow by one
    with each update, such as an optimizer's `iterations`.
    """

    def __init__(self) -> None:
        self._candidates: list[tf.Variable] = []

    def note(self, create: Callable[..., Any], **options: Any) -> Any:
        """A variable creator that records variables that may count steps."""
        variable = create(**options)
        if variable.dtype.is_integer and variable.shape.rank == 0:
            self._candidates.append(variable)
        return variable

    def values(self) -> list[int]:
        """Returns the current value of each candidate."""
        return [int(variable.numpy()) for variable in self._candidates]

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
        # The largest count is that of the steps run; the rest is for the log.
        most = num_steps
        for variable, grown in zip(known, growth, strict=True):
            if grown > num_steps and abs(grown - done) <= apart:
                variable.assign_sub(grown - num_steps)
                most = max(most, grown)
        if most > num_steps:
            logging.warning(
                "A worker was lost: %d steps were run twice.", most - num_steps
            )


def with_staleness(
    step: Callable[[], Any], updates: tf.Variable
) -> tuple[Any, tf.Tensor]:
    """Runs a step while it is traced, and counts its update.

    Args:
        step: the step.
        updates: counts the updates of all workers; int64 scalar.

    Returns:
        The step's result, and the number of updates of others between its reads
        and its own update.
    """
    with tf.device(updates.device):
        before = tf.raw_ops.ReadVariableOp(
            resource=updates.handle, dtype=updates.dtype
        )
    graph = tf.compat.v1.get_default_graph()
    known = len(graph.get_operations())
    results = step()
    # The graph alone does not order the count after the update.
    made = [one for one in graph.get_operations()[known:] if _may_update(one)]
    with tf.device(updates.device), tf.control_dependencies(made):
        after = updates.assign_add(1, read_value=True)
        # Without this step's own update.
        return results, tf.cast(after - before - 1, tf.float32)


def _may_update(operation: tf.Operation) -> bool:
    """Whether an operation may change a variable, itself or in a function."""
    if operation.type.startswith(_CHANGES):
        return True
    return operation.op_def.is_stateful and any(
        attribute.type == "func" for attribute in operation.op_def.attr
    )
