"""Counts of the chief: steps, exact where one may run twice, and staleness.

When a worker dies within a closure, another worker repeats the closure from
its start. The first worker's updates stay in the weights, but each step must
count once: in the learning rate schedule, in checkpoints and in the position
in the data.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from trainer.plugin_api import graph_function, outside_graph

# How the names of operations begin that change a variable.
_CHANGES = ("Assign", "ResourceApply", "ResourceSparse", "ResourceScatter")


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


class Staleness:
    """The number of updates between a step's read and its own update.

    It is added up on the server that counts the updates, and read once in a
    host loop: to send it in each step would take as long as to send a small
    weight.

    Args:
        updates: counts the updates of all workers; int64 scalar.
    """

    def __init__(self, updates: tf.Variable) -> None:
        self._updates = updates
        # Not in the strategy's scope, which would place it on the next server.
        # A step may be being traced.
        with tf.init_scope(), tf.device(updates.device):
            # The staleness of all updates, and their number.
            self._sums = tf.Variable(
                tf.zeros([2], tf.int64), trainable=False, name="staleness"
            )
        self._read = ReadAtOnce([self._sums])
        self._taken = np.zeros(2, np.int64)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Surrounds a step while it is traced, and counts its update."""
        updates = self._updates
        with tf.device(updates.device):
            before = tf.raw_ops.ReadVariableOp(
                resource=updates.handle, dtype=updates.dtype
            )
        graph = tf.compat.v1.get_default_graph()
        known = len(graph.get_operations())
        yield
        # The graph alone does not order the count after the update.
        made = [
            operation
            for operation in graph.get_operations()[known:]
            if _may_update(operation)
        ]
        with tf.device(updates.device), tf.control_dependencies(made):
            after = updates.assign_add(1, read_value=True)
            one = tf.constant(1, tf.int64)
            # Without this step's own update.
            self._sums.assign_add(tf.stack([after - before - one, one]))

    def take(self) -> float:
        """The mean over all updates since the last call."""
        last, (self._taken,) = self._taken, self._read()
        total, count = self._taken - last
        return float(total / count) if count else 0.0


def _may_update(operation: tf.Operation) -> bool:
    """Whether an operation may change a variable, itself or in a function."""
    if operation.type.startswith(_CHANGES):
        return True
    return operation.op_def.is_stateful and any(
        attribute.type == "func" for attribute in operation.op_def.attr
    )


class ReadAtOnce:
    """Reads variables in one message to each server.

    While workers keep the servers busy, a message takes milliseconds, and
    `Variable.numpy` takes several.

    Args:
        variables: what to read.

    Attributes:
        count: how many variables.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        handles = [(one.handle, one.dtype) for one in variables]
        self.count = len(handles)

        def read() -> list[tf.Tensor]:
            values = [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                for handle, dtype in handles
            ]
            # Here, not where the variable is, from where each would be fetched.
            with tf.device("CPU:0"):
                return [tf.identity(value) for value in values]

        self._read = graph_function(read)

    def __call__(self) -> list[np.ndarray]:
        """The variables' present values."""
        with outside_graph():
            return [value.numpy() for value in self._read()]
