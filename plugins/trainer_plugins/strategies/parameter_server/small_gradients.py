"""Sends the small gradients of a step to a server in one message."""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# A message takes as long as to copy some hundred kilobytes. A larger gradient
# is sent as it is, while the backward pass still computes others.
_MOST_BYTES = 2**16


def sent_together(
    gradients: Sequence[tuple[Any, tf.Variable]],
) -> list[tuple[Any, tf.Variable]]:
    """Packs small gradients on the worker, and unpacks them on the server.

    Args:
        gradients: see `StrategyPlugin.send`.
    """
    found = list(gradients)
    groups = collections.defaultdict(list)
    for i, (gradient, variable) in enumerate(found):
        if _is_small(gradient):
            groups[variable.device, gradient.dtype].append(i)
    for (server, _), group in groups.items():
        if len(group) == 1:
            continue
        packed = tf.concat([tf.reshape(found[i][0], [-1]) for i in group], 0)
        shapes = [found[i][0].shape for i in group]
        sizes = [shape.num_elements() for shape in shapes]
        with tf.device(server):
            parts = tf.split(packed, sizes)
            for i, part, shape in zip(group, parts, shapes, strict=True):
                found[i] = tf.reshape(part, shape), found[i][1]
    return found


def _is_small(gradient: Any) -> bool:
    """Whether it is dense, and its size is known and small."""
    if not isinstance(gradient, tf.Tensor):
        return False
    count = gradient.shape.num_elements()
    return count is not None and count * gradient.dtype.size <= _MOST_BYTES
