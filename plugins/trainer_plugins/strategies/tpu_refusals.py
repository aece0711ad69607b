"""Refuses data and steps that a TPU cannot run, before the first step."""

from typing import Any

import keras
import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import Padded

# They call back into the Python process that made them.
_PYTHON_OPS = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}


def check_input(dataset: tf.data.Dataset, *, remote: bool) -> None:
    """Checks that a TPU can be fed from a dataset, read here or remotely.

    Raises:
        UserError: it yields strings, or runs Python code on remote hosts.
    """
    specs = dataset.element_spec
    if isinstance(specs, Padded):
        specs = specs.batch
    for path, spec in keras.tree.flatten_with_path(specs):
        if spec.dtype == tf.string:
            part = " / ".join(map(str, path)) or "x"
            raise UserError(
                f"In the data, part {part} holds strings, which a TPU cannot "
                "take. Turn them into numbers in the data function."
            )
    if remote and (found := _python_op(_graph_of(dataset))):
        raise UserError(
            f"The data runs Python code ({found}: py_function, "
            "numpy_function or from_generator), but it is read on the TPU's "
            "hosts, which cannot run it. Use TensorFlow operations, or a "
            "TPU VM with --tpu=local."
        )


def check_step(graph: tf.Graph) -> None:
    """Checks that a traced step runs no Python code.

    Raises:
        UserError: it does; the operation is named.
    """
    found = _python_op(graph.as_graph_def())
    if found:
        raise UserError(
            f"The step runs Python code ({found}: py_function or "
            "numpy_function), which a TPU cannot run. Use keras.ops or "
            "TensorFlow operations."
        )


def _graph_of(dataset: tf.data.Dataset) -> Any:
    # Only the operations matter here, not the state of a shuffle or the like,
    # which some datasets cannot serialize.
    ignore = 1
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=ignore,
    )
    return tf.compat.v1.GraphDef.FromString(graph.numpy())


def _python_op(graph: Any) -> str | None:
    """Returns the name of an operation that runs Python code, if any."""
    nodes = list(graph.node)
    # What `map` or `filter` call is not among the graph's own nodes.
    for function in graph.library.function:
        nodes.extend(function.node_def)
    return next((node.name for node in nodes if node.op in _PYTHON_OPS), None)
