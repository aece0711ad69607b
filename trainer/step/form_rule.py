"""Chooses the compiled form of a step by its operations.

The cost of a form on a CPU follows from the operations of a step. TensorFlow
has the faster convolutions and products of matrices. XLA starts no operations,
and reads a tensor once where TensorFlow reads it for each operation. So XLA is
faster where few products are made for each number that is written. The limits
were measured on small models of many kinds; docs/about/benchmarks.md says how.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Collection

import tensorflow as tf

from trainer.step.forms import Form
from trainer.step.operations import operations_of

# Operations that act outside of the graph.
PYTHON = frozenset(
    {"EagerPyFunc", "Print", "PrintV2", "PyFunc", "PyFuncStateless"}
)
# XLA omits these checks, so steps that have them do not choose it themselves.
# Lookups are checked in another way, see `trainer.step.lookups`.
CHECKS = PYTHON | {
    "Assert",
    "CheckNumerics",
    "CheckNumericsV2",
    "GatherNd",
    "ResourceGather",
    "ResourceGatherNd",
}
# What draws floats, or finds the key of a seed; and what is alike in all forms.
_DRAWS = re.compile(
    "Random|Multinomial|Truncated|StandardNormal|StatefulUniform|Rng"
)
_ALIKE = frozenset(
    {
        "StatelessRandomUniformFullIntV2",
        "StatelessRandomUniformIntV2",
        "StatelessRandomGetAlg",
    }
)
# XLA's are up to 50 times as slow.
_CONVOLUTION = "Conv"
# The FLOPs for each number that is written from which on the graph is faster.
_MOST_FLOPS = {Form.XLA_STACK: 40, Form.XLA: 16}
# XLA takes about as long for a random number as for so many FLOPs.
_FLOPS_OF_RANDOM = 1500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The parts of a step.

    Attributes:
        types: of its operations.
        flops: of its products of matrices; a loop counts once.
        written: floats that its operations write.
        drawn: floats that are random.
    """

    types: frozenset[str]
    flops: int
    written: int
    drawn: int

    @classmethod
    def of(cls, graph: tf.Graph, *, batch_size: int) -> "Facts":
        """Counts in a traced graph, and in the functions that it calls.

        Args:
            graph: the step's, in the form `Form.GRAPH`.
            batch_size: stands for every dimension that is not known.
        """
        flops = written = drawn = 0
        for operation in operations_of(graph):
            size = sum(
                _size(output, batch_size)
                for output in operation.outputs
                if output.dtype.is_floating
            )
            written += size
            drawn += size if _DRAWS.search(operation.type) else 0
            flops += _flops(operation, batch_size)
        return cls(
            types=frozenset(types_of(graph)),
            flops=flops,
            written=written,
            drawn=drawn,
        )


def types_of(graph: tf.Graph) -> collections.Counter[str]:
    """How many operations of a type a graph and its functions have."""
    return collections.Counter(one.type for one in operations_of(graph))


def other_numbers(types: Collection[str]) -> list[str]:
    """Those of a program for XLA that draw other numbers than the graph."""
    return sorted(
        one for one in types if _DRAWS.search(one) and one not in _ALIKE
    )


def form_of(facts: Facts, legal: Collection[Form]) -> tuple[Form, str]:
    """The form of a step on a CPU, and why, as a clause."""
    if checks := sorted(facts.types & CHECKS):
        return Form.GRAPH, f"XLA leaves out its checks ({', '.join(checks)})"
    if any(_CONVOLUTION in one for one in facts.types):
        return Form.GRAPH, "TensorFlow's convolutions are faster"
    flops = facts.flops + _FLOPS_OF_RANDOM * facts.drawn
    for form, most in _MOST_FLOPS.items():
        if form in legal and flops <= most * facts.written:
            return form, "it computes little for each number that it writes"
    return Form.GRAPH, "it computes much for each number that it writes"


def _shape(tensor: tf.Tensor, batch_size: int) -> list[int]:
    if tensor.shape.rank is None:
        return []
    return [batch_size if n is None else n for n in tensor.shape.as_list()]


def _size(tensor: tf.Tensor, batch_size: int) -> int:
    return math.prod(_shape(tensor, batch_size))


def _flops(operation: tf.Operation, batch_size: int) -> int:
    """Two for each multiplication in a product of matrices; else 0."""
    if operation.type == "Einsum":
        equation = operation.get_attr("equation").decode()
        sides: dict[str, int] = {}
        for letters, tensor in zip(
            equation.partition("->")[0].split(","),
            operation.inputs,
            strict=True,
        ):
            sides |= zip(letters, _shape(tensor, batch_size), strict=False)
        return 2 * math.prod(sides.values())
    if "MatMul" not in operation.type:
        return 0
    first = _shape(operation.inputs[0], batch_size) or [1]
    is_plain = operation.type == "MatMul"
    turned = operation.get_attr("transpose_a" if is_plain else "adj_x")
    inner = first[-2] if turned and len(first) > 1 else first[-1]
    return 2 * inner * _size(operation.outputs[0], batch_size)
