"""Facts about the operations of a graph and of its functions."""

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.runtime.tensorflow_private import function_of_graph

_NUMBERED = re.compile(r"_\d+$")


class _Kind(NamedTuple):
    """Facts of a type of operations.

    Attributes:
        functions: the attributes that name a function that it calls.
        keeps_random_state: whether it draws from a state inside TensorFlow.
    """

    functions: list[str]
    keeps_random_state: bool


_kinds: dict[str, _Kind] = {}


def _kind_of(operation: tf.Operation) -> _Kind:
    if operation.type not in _kinds:  # To read them takes time.
        facts = operation.op_def
        _kinds[operation.type] = _Kind(
            [one.name for one in facts.attr if "func" in one.type],
            # All stateful random operations have a second seed, also those
            # that a later version adds.
            facts.is_stateful and any(a.name == "seed2" for a in facts.attr),
        )
    return _kinds[operation.type]


def keeps_random_state(operation: tf.Operation) -> bool:
    """Whether an operation draws from a state that no one else can read."""
    return _kind_of(operation).keeps_random_state


def called_graphs(operation: tf.Operation) -> list[Any]:
    """The graphs of the functions that an operation calls."""
    found = []
    for attribute in _kind_of(operation).functions:
        given = operation.get_attr(attribute)
        for one in given if isinstance(given, list) else [given]:
            function = function_of_graph(operation.graph, one.name)
            found.append(getattr(function, "graph", None))
    return [] if None in found else found


def operations_of(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Those of a graph, and of each function that it calls, once."""
    graphs, seen = [graph], {id(graph)}
    while graphs:
        for operation in graphs.pop().get_operations():
            yield operation
            for inner in called_graphs(operation):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    graphs.append(inner)


def layer_of(operation: tf.Operation, layers: Collection[str]) -> str | None:
    """The innermost of some layers in whose scope an operation was made."""
    for scope in reversed(operation.name.split("/")):
        # A graph numbers the later ones of equal names.
        for layer in (scope, _NUMBERED.sub("", scope)):
            if layer in layers:
                return layer
    return None
