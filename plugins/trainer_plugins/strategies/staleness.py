"""Measures how stale the gradients are that workers apply."""

import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from trainer_plugins.strategies.read_at_once import ReadAtOnce

# How the names of operations begin that change a variable.
_CHANGES = ("Assign", "ResourceApply", "ResourceSparse", "ResourceScatter")


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
