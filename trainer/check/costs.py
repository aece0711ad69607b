"""What a step costs, counted in its graph: operations and memory."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

# The registry behind `tf.compat.v1.profiler`, which a graph of a tf.function
# cannot be handed to.
from tensorflow.python.framework import ops
from tensorflow.python.util import deprecation

from trainer.check.programs import RunPrograms
from trainer.errors import UserError
from trainer.loop.run import Run
from trainer.runtime.exit_report import headline
from trainer.runtime.graph import graph_function
from trainer.runtime.report import Row

# Of what these hold, it is not known how often it is done.
_GRADIENT = "gradient_tape/"
_NOT_COUNTED = {
    f"{prefix}{kind}"
    for prefix in ("", "Stateless", "Stateful")
    for kind in ("While", "If", "Case")
}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
# Some strategies trace a step in their own loop only. It is no more than a
# figure of the report.
_NOT_TRACED = (UserError, RuntimeError, TypeError, ValueError)
_NOT_ACTIVATIONS = {"Const", "Placeholder", "ReadVariableOp", "VariableV2"}


def memory_of(run: Run) -> dict[str, int]:
    """The bytes of a run's variables on one device, by what they are for."""
    parts = run.parts
    optimizers = [v for one in parts.optimizers.values() for v in one.variables]
    return {
        "model": _bytes(parts.model.variables),
        "gradients": _bytes(parts.model.trainable_variables),
        "optimizer": _bytes(optimizers),
        "moving average": _bytes(parts.ema.variables if parts.ema else []),
    }


def activation_bytes(programs: RunPrograms) -> int | None:
    """An estimate of what a micro-batch keeps for its backward pass.

    Returns:
        `None` under a strategy that traces a step in a loop of its own.
    """
    try:
        return _activations(_graph(programs))
    except _NOT_TRACED:
        return None


def _bytes(variables: Iterable[Any]) -> int:
    return sum(
        math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables
    )


def _graph(programs: RunPrograms) -> tf.Graph:
    program = programs.micro_batch()
    traced = graph_function(program.function)
    return traced.get_concrete_function(*program.inputs).graph


def step_costs(programs: RunPrograms) -> list[Row]:
    """FLOP of a step, and the memory of what its backward pass needs."""
    try:
        graph = _graph(programs)
    except _NOT_TRACED as error:
        why = headline(error)
        return [
            Row("FLOP", None, "FLOP", why),
            Row("activation memory", None, "bytes", why),
        ]
    micro = programs.micro_batches
    counted = [(op.type, _flops_of(op)) for op in _operations(graph)]
    loops = sorted({kind for kind, _ in counted} & _NOT_COUNTED)
    unknown = sorted({kind for kind, flop in counted if flop is None})
    note = "a step of this process, as TensorFlow states it"
    if loops:
        note += f"; not in {', '.join(loops)}"
    if unknown:
        note += f"; not {', '.join(unknown)} of unknown shapes"
    return [
        Row(
            "FLOP", micro * sum(flop or 0 for _, flop in counted), "FLOP", note
        ),
        Row(
            "bytes accessed",
            micro * _accessed(graph),
            "bytes",
            "likewise, if nothing is fused",
        ),
        Row(
            "activation memory",
            _activations(graph),
            "bytes",
            "estimate: what the backward pass of a micro-batch reads",
        ),
    ]


def _operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Those of a graph, and of the functions that it calls, at each call."""
    for op in graph.get_operations():
        if op.type in _CALLS:
            called = graph._get_function(op.get_attr("f").name)
            yield from _operations(called.graph)
        else:
            yield op


def _flops_of(op: tf.Operation) -> int | None:
    """The operations that one does; `None` where its shapes do not tell."""
    if op.type == "Einsum":
        return _einsum_flops(op)
    try:
        with deprecation.silence():  # It calls what is, each time.
            found = ops.get_stats_for_node_def(op.graph, op.node_def, "flops")
    except (ValueError, TypeError):
        return None
    return int(found.value or 0)


def _einsum_flops(op: tf.Operation) -> int | None:
    """A multiplication and an addition for each combination of indices."""
    equation = op.get_attr("equation").decode()
    sides: dict[Any, int] = {}
    for labels, part in zip(
        equation.partition("->")[0].split(","), op.inputs, strict=True
    ):
        if not part.shape.is_fully_defined():
            return None
        first, _, last = labels.partition("...")
        # Those of an ellipsis are aligned at their ends, and broadcast.
        between = range(part.shape.rank - len(first) - len(last), 0, -1)
        for label, side in zip(
            (*first, *between, *last), part.shape, strict=True
        ):
            sides[label] = max(side, sides.get(label, 1))
    return 2 * math.prod(sides.values())


def _accessed(graph: tf.Graph) -> int:
    return sum(
        _size(tensor)
        for op in _operations(graph)
        for tensor in (*op.inputs, *op.outputs)
    )


def _activations(graph: tf.Graph) -> int:
    kept = {}
    for op in graph.get_operations():
        if _GRADIENT not in op.name:
            continue
        for tensor in op.inputs:
            made_by = tensor.op
            if _GRADIENT in made_by.name or made_by.type in _NOT_ACTIVATIONS:
                continue
            kept[tensor.ref()] = _size(tensor)
    return sum(kept.values())


def _size(tensor: tf.Tensor) -> int:
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    return int((tensor.shape.num_elements() or 0) * tensor.dtype.size)
