"""Lookups of rows by number, whose bounds XLA does not check.

On a CPU, TensorFlow fails where a number is out of bounds. Code compiled
by XLA takes a different row instead, so a compiled step counts such numbers,
and the run ends before any of their effects is saved.
"""

from collections.abc import Collection, Sequence

import tensorflow as tf

from trainer.step.operations import layer_of

# The operation whose bounds are known here.
TYPE = "GatherV2"


class Lookups:
    """The lookups of a step, found while it is traced.

    Attributes:
        found: a line about each that can be checked, such as `"'embedding':
            rows 0 to 999"`; of the replica that was traced last.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def misses(
        self, *, since: int, layers: Collection[str] = ()
    ) -> tf.Tensor | None:
        """How many numbers are out of bounds: a float32 scalar.

        Args:
            since: operations of the graph that is being built, see `position`,
                that came before the step.
            layers: the names of the model's layers.

        Returns:
            `None` where there is no lookup, or no graph.
        """
        bad = {}
        for operation in _operations()[since:]:
            limit = _limit(operation)
            if limit is not None:
                numbers = operation.inputs[1]
                outside = (numbers < 0) | (numbers >= limit)
                name = layer_of(operation, layers) or operation.name
                line = f"{name!r}: rows 0 to {limit - 1}"
                bad[operation.name] = line, tf.cast(outside, tf.float32)
        self.found = [line for line, _ in bad.values()]
        if not bad:
            return None
        return tf.add_n([tf.reduce_sum(one) for _, one in bad.values()])


def position() -> int:
    """How many operations the graph has that is being built; 0 without one."""
    return len(_operations())


def _operations() -> Sequence[tf.Operation]:
    if tf.executing_eagerly():
        return []
    operations: list[tf.Operation] = (
        tf.compat.v1.get_default_graph().get_operations()
    )
    return operations


def _limit(operation: tf.Operation) -> int | None:
    """Returns the bound of each number; `None` if it is unknown."""
    if operation.type != TYPE or operation.inputs[0].shape.rank is None:
        return None
    axis = tf.get_static_value(operation.inputs[2])
    return None if axis is None else operation.inputs[0].shape[int(axis)]
