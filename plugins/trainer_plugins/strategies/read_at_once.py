"""Reads variables that live on servers."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from trainer.plugin_api import graph_function, outside_graph


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
