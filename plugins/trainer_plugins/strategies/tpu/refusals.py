"""Refuses data and steps that a TPU cannot run, before the first step."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import Padded, operations_of

# By type of operation, why a TPU cannot run it, and what to do instead. The
# first call back into the Python process that made them.
_PYTHON = r"(Eager)?PyFunc(Stateless)?"
_DATA_DEPENDENT = (
    r"DynamicPartition|ListDiff|NonMaxSuppression(V[23])?"
    r"|Unique(WithCounts)?(V2)?|Where"
)
_REFUSED = {
    _PYTHON: "runs Python code (py_function or numpy_function). Use keras.ops "
    "or TensorFlow operations.",
    r"Print(V2)?|StringFormat|Write\w*Summary": "prints or writes a summary on "
    "the host. Return the values of interest as metrics.",
    r"LookupTable\w+|(Anonymous)?(Mutable)?(Dense)?HashTable\w*": "looks up a "
    "table, which is in the memory of the host. Look it up in the data "
    "function, in Dataset.map.",
    _DATA_DEPENDENT: "has a result whose shape depends on the data, and a TPU "
    "program has fixed shapes. Keep all elements and give those that do not "
    "count a weight of 0, as by tf.where(condition, x, 0) with three "
    "arguments.",
}
_DTYPES = {
    tf.string: "works on strings, which a TPU does not have. Turn them into "
    "numbers in the data function.",
    # TensorFlow registers no kernel of a TPU for it; float64 is emulated.
    tf.complex128: "computes in complex128, which a TPU does not have. Use "
    "complex64.",
}
# An assertion's text is no part of the program.
_MAY_HOLD_TEXT = {"Assert", "Const"}
_ON_CORE = "_tpu_replicate"
# Marks, in the name of an operation, the layer that made it.
_LAYER = re.compile(r"(?:^|/)([^/]+?)\.layer(?:_\d+)?(?=/|$)")
# TensorFlow replaces by this the characters that a name may not have.
_NOT_IN_A_NAME = re.compile(r"[^\w.\-]")


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
    if remote and (found := _python_op(dataset)):
        raise UserError(
            f"The data runs Python code ({found}: py_function, "
            "numpy_function or from_generator), but it is read on the TPU's "
            "hosts, which cannot run it. Use TensorFlow operations, or a "
            "TPU VM with --tpu=local."
        )


@contextlib.contextmanager
def layers_in_names() -> Iterator[None]:
    """Lets the name of each operation that is traced say whose layer it is.

    Keras opens a scope of a layer's name, too, to which TensorFlow may append a
    number, so that `dense_1` may be two layers.
    """
    own = keras.layers.Layer.__call__

    def call(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(f"{_NOT_IN_A_NAME.sub('_', self.name)}.layer"):
            return own(self, *args, **kwargs)

    keras.layers.Layer.__call__ = call
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = own


def described(operation: str) -> str:
    """Describes an operation and its layer in words.

    Args:
        operation: a name that was traced in `layers_in_names`.
    """
    layers = _LAYER.findall(operation)
    name = operation.rpartition("/")[2]
    if not layers:
        return f"the operation {operation}, which belongs to no layer,"
    gradient = " the gradient of" if "gradient_tape/" in operation else ""
    return f"{name} in{gradient} the layer {layers[-1]!r}"


def check_step(graph: tf.Graph) -> None:
    """Checks that a traced step has nothing that no TPU can run.

    Raises:
        UserError: it has; the operation and its layer are named.
    """
    operations = list(operations_of(graph))
    on_core = [_ON_CORE in one.node_def.attr for one in operations]
    for one, is_on_core in zip(operations, on_core, strict=True):
        refused = (
            why
            for kinds, why in _REFUSED.items()
            if re.fullmatch(kinds, one.type)
        )
        why = next(refused, None)
        # Beside the program of the cores, TPUStrategy has operations on the
        # host.
        computed = is_on_core or not any(on_core)
        if why is None and computed and one.type not in _MAY_HOLD_TEXT:
            dtypes = [made.dtype for made in one.outputs]
            why = next((_DTYPES[d] for d in dtypes if d in _DTYPES), None)
        if why:
            # Most are named after their type.
            of = "" if one.type in one.name else f" ({one.type})"
            raise UserError(f"In the step, {described(one.name)}{of} {why}")


def _python_op(dataset: tf.data.Dataset) -> str | None:
    """Returns the name of an operation that runs Python code, if any."""
    content = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        # Ignored: only the operations matter here, not the state of a shuffle
        # or the like, which some datasets cannot serialize.
        external_state_policy=1,
    )
    graph = tf.compat.v1.GraphDef.FromString(content.numpy())
    nodes = list(graph.node)
    # Functions of `map` or `filter` are not among the graph's own nodes.
    for function in graph.library.function:
        nodes.extend(function.node_def)
    return next((n.name for n in nodes if re.fullmatch(_PYTHON, n.op)), None)
