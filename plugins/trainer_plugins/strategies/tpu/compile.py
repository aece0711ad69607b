"""Compiles a program for a TPU that is not there.

TensorFlow lowers it to StableHLO, with its own bridge to XLA; libtpu compiles
that in a process of its own.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import Program, graph_function, outside_graph, show
from trainer_plugins.strategies.tpu import libtpu_process
from trainer_plugins.strategies.tpu.refusals import (
    check_step,
    described,
    layers_in_names,
)
from trainer_plugins.strategies.tpu.topology import Topology

# In TensorFlow's message: `StringLower (No registered 'StringLower' OpKernel
# for XLA_CPU_JIT devices ...){{node a/b/StringLower}}`.
_NO_KERNEL = re.compile(
    r"(?P<kind>\w+) \(No registered .*?\{\{node (?P<name>[^}]+)\}\}", re.DOTALL
)
# The message of tensorflow-tpu 2.20 for every program.
_NO_CPU = "transfer manager for platform Host"
# XLA's words for the memory of a loop's gradients or of a TensorArray.
_NO_LENGTH = "requires a fixed tensor list size"
_NODE = re.compile(r"\{\{node (?P<name>[^}]+)\}\}")
_NO_ROOM = "RESOURCE_EXHAUSTED"
# `required for HLO temporaries (69.4G) exceeds available HBM (15.75G)`
_USED = re.compile(r"\((?P<used>[\d.]+\w)\) exceeds .*?\((?P<limit>[\d.]+\w)\)")
_OPERATION = re.compile(r'op_name="(?P<name>[^"]+)"')


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
    # TensorFlow raises ValueError or one of its own where XLA lacks something.
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
    """TensorFlow's message, with the operation and its layer first."""
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
            f"({missing['kind']}) is not among the operations of XLA. Use a "
            "different one of keras.ops or TensorFlow, or compute it in the "
            "data."
        )
    found = _NODE.search(message)
    where = f"{described(found['name'])}: " if found else ""
    if _NO_LENGTH in message:
        return (
            f"In the {program}, {where}the values that a loop keeps of each "
            "pass have no fixed size, which a TPU program needs. Give "
            "tf.while_loop maximum_iterations, a TensorArray its size, or use "
            "keras.ops.scan."
        )
    first = message.strip().partition("\n")[0]
    return f"In the {program}, XLA cannot take {where}{first}"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The TPU compiler's report on a program, for one chip.

    Attributes:
        argument: bytes of inputs and variables.
        output: bytes of results.
        alias: bytes of results that are in an argument's place.
        temp: bytes of everything else that is alive at once.
        generated_code: bytes of the program itself.
        flops: floating-point operations; of a loop, those of one pass.
        bytes_accessed: of memory, likewise.
        all_reduces: how many there are.
        loops: how many there are.
    """

    argument: int
    output: int
    alias: int
    temp: int
    generated_code: int
    flops: float
    bytes_accessed: float
    all_reduces: int
    loops: int

    @property
    def live_bytes(self) -> int:
        """The bytes that are in the chip's memory at once."""
        kept = self.argument + self.output - self.alias
        return kept + self.temp + self.generated_code


def compile_for(
    topology: Topology, lowered: Lowered, *, name: str, replicas: int
) -> Compiled:
    """Compiles a program in a process of its own.

    libtpu writes to the standard streams, and ends the process where it finds
    an error in itself.

    Args:
        topology: the slice to compile for.
        lowered: the program.
        name: of the program, for messages.
        replicas: how many chips run it together.

    Raises:
        UserError: it needs more memory than there is, or cannot be compiled
            for another reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.mlir")
        with open(path, "wb") as file:
            file.write(lowered.module)
        done = subprocess.run(
            [
                *(sys.executable, "-m", libtpu_process.__name__),
                str(topology),
                json.dumps(dict(topology.chip.options)),
                str(replicas),
                path,
            ],
            # libtpu leaves logs there. It is needed, even where a run is told
            # to leave the chips of its machine alone.
            env={
                **os.environ,
                "TPU_LOG_DIR": "disabled",
                "TPU_LOAD_LIBRARY": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout.strip():
        last = done.stderr.strip().rpartition("\n")[2]
        raise UserError(
            f"The TPU compiler ended with {done.returncode} on the {name}: "
            f"{last}"
        )
    found = json.loads(done.stdout)
    if "error" in found:
        raise _failure(topology, lowered, name, found["error"])
    return Compiled(**found)


def _failure(
    topology: Topology, lowered: Lowered, name: str, message: str
) -> UserError:
    first = message.strip().partition("\n")[0]
    if not first.startswith(_NO_ROOM):
        found = _OPERATION.search(message)
        where = f", at {described(found['name'])}" if found else ""
        return UserError(
            f"The TPU compiler refuses the {name} for {topology}{where}: "
            f"{first}"
        )
    found = _USED.search(message)
    needed = "{used}, and {limit} are available" if found else "more"
    operation, size = lowered.largest
    return UserError(
        f"The {name} does not fit into the memory of a {topology.kind} chip: "
        f"it needs {needed.format(**found.groupdict() if found else {})}. Its "
        f"largest tensor, of {show(size, 'bytes')}, is made by "
        f"{described(operation)}. Use a smaller batch_size, "
        "accumulation_steps, mixed_bfloat16 or more chips."
    )
