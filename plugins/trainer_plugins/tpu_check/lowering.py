"""Lowers a program to StableHLO, with TensorFlow's own bridge to XLA."""

import dataclasses
import re
from typing import Any

import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import Program, graph_function, outside_graph
from trainer_plugins.strategies.tpu_refusals import (
    check_step,
    described,
    layers_in_names,
)

# In TensorFlow's message: `StringLower (No registered 'StringLower' OpKernel
# for XLA_CPU_JIT devices ...){{node a/b/StringLower}}`.
_NO_KERNEL = re.compile(
    r"(?P<kind>\w+) \(No registered .*?\{\{node (?P<name>[^}]+)\}\}", re.DOTALL
)
# What tensorflow-tpu 2.20 says of every program.
_NO_CPU = "transfer manager for platform Host"
_NODE = re.compile(r"\{\{node (?P<name>[^}]+)\}\}")


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program for XLA.

    Attributes:
        module: StableHLO in MLIR's bytecode.
        reduced: the bytes of each tensor that is summed over replicas.
        largest: the operation that makes the largest tensor, and its bytes.
    """

    module: bytes
    reduced: list[int]
    largest: tuple[str, int]


def traced(program: Program) -> tuple[Any, Any]:
    """A program as a function of the leaves of its inputs, to be compiled.

    Returns:
        The function, and its trace: a `ConcreteFunction`.
    """
    leaves = tf.nest.flatten(program.inputs)

    def flat(*tensors: tf.Tensor) -> Any:
        return program.function(
            *tf.nest.pack_sequence_as(program.inputs, tensors)
        )

    function = graph_function(flat, jit_compile=True)
    with outside_graph(), layers_in_names():
        return function, function.get_concrete_function(*leaves)


def lower(program: Program) -> Lowered:
    """Traces a program and lowers it, for the CPU's set of operations.

    Raises:
        UserError: a TPU cannot run it; the operation and its layer are named.
    """
    leaves = tf.nest.flatten(program.inputs)
    function, trace = traced(program)
    graph = trace.graph
    check_step(graph)
    try:
        module = function.experimental_get_compiler_ir(*leaves)(
            stage="stablehlo_serialized", platform_name="CPU"
        )
    # TensorFlow raises ValueError or one of its own for what XLA lacks.
    except (ValueError, tf.errors.OpError) as error:
        raise UserError(_sentence(program.name, str(error))) from error
    return Lowered(
        module=module,
        reduced=[
            _bytes_of(op.outputs[0])
            for op in graph.get_operations()
            if op.type == "XlaAllReduce"
        ],
        largest=max(
            (
                (op.name, _bytes_of(made))
                for op in graph.get_operations()
                for made in op.outputs
            ),
            key=lambda found: found[1],
            default=("none", 0),
        ),
    )


def _bytes_of(tensor: Any) -> int:
    # The shape of a tensor in a condition or a loop may not be known here.
    return int((tensor.shape.num_elements() or 0) * tensor.dtype.size)


def _sentence(program: str, message: str) -> str:
    """What TensorFlow says, with the operation and its layer first."""
    if _NO_CPU in message:
        return (
            f"TensorFlow {tf.__version__}, as it is installed here, cannot "
            "lower a program for XLA on a CPU; that of the extra tpu cannot. "
            "Check in another environment, with "
            "keras-trainer-plugins[cpu,tpu-check]."
        )
    missing = _NO_KERNEL.search(message)
    if missing:
        return (
            f"In the {program}, {described(missing['name'])} "
            f"({missing['kind']}) is not among the operations of XLA. Use "
            "others of keras.ops or TensorFlow, or compute it in the data."
        )
    found = _NODE.search(message)
    where = f"{described(found['name'])}: " if found else ""
    first = message.strip().partition("\n")[0]
    return f"In the {program}, XLA cannot take {where}{first}"
