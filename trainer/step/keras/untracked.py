"""Finds the state that a traced step uses and Keras does not track.

A resumed run needs all the state that its steps have left. Keras only knows
the variables that it tracks. The graph of a step shows all variables, and the
random operations that keep a state of their own:

- A variable that Keras does not track has no name by which the next process
  would know it. If the step writes it, a run that saves is refused. If the step
  only reads it, or if nothing is saved, there is a warning.
- A random operation such as `tf.random.normal` keeps its state inside
  TensorFlow, and is treated like a variable that the step writes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.runtime.tensorflow_private import (
    data_of_handle,
    watched_variables,
)
from trainer.step.keras.private import all_layers, native
from trainer.step.operations import (
    called_graphs,
    keeps_random_state,
    layer_of,
    operations_of,
)

# Operations that read a variable and do not change it.
_READS = {
    "Identity",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
}
# TensorFlow orders collectives by resources of its own.
_COLLECTIVE = "Collective"


class Untracked:
    """Training state that no checkpoint holds.

    Args:
        known: the variables that checkpoints hold, or need not.

    Attributes:
        known: the ids of their handles.
        lost: error messages about the state of the training step that no
            checkpoint can hold; known once it has been traced.
    """

    def __init__(self, known: Sequence[Any]) -> None:
        self.known = {key for one in known for key in _handles(one)}
        self.lost: list[str] = []

    def require_nothing_lost(self) -> None:
        """Checks that checkpoints can hold all that training leaves.

        Raises:
            UserError: a resumed run would continue differently.
        """
        if self.lost:
            raise UserError(self.lost[0])


def captured() -> set[int]:
    """The resources that the graph being traced has captured so far."""
    if tf.executing_eagerly():
        return set()
    graph = tf.compat.v1.get_default_graph()
    return {id(outer) for outer, _ in graph.captures}


def check(
    untracked: Untracked,
    model: keras.Model,
    before: set[int],
    *,
    training: bool = False,
    refuse: bool = False,
) -> None:
    """Looks through the graph that is being traced, at the end of a step.

    Args:
        untracked: knows what checkpoints hold.
        model: whose layers are named.
        before: what `captured` returned at the beginning of the step: these
            are the strategy's.
        training: whether it is a training step. What an evaluation leaves is
            never refused.
        refuse: whether the run saves.

    Raises:
        UserError: a run that saves would differ once it is resumed.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    layers = {layer.name for layer in all_layers(model)}
    lost: list[str] = []
    warned: list[str] = []
    for outer, inner in graph.captures:
        is_saved = id(outer) in before or id(outer) in untracked.known
        shape = None if is_saved else _shape_of_variable(outer)
        if shape is None:
            continue
        users = set(_users(inner))
        if all(kind.startswith(_COLLECTIVE) for kind in users):
            continue
        # Only variables that are read are watched: others have no name here.
        watched = watched_variables(graph)
        names = [one.name for one in watched if id(outer) in _handles(one)]
        name = names[0] if names else f"a tf.Variable of shape {shape}"
        message = (
            f"{_layer_of(inner.op, layers)} uses {name}, which Keras does not "
            "track, so no checkpoint holds it: a resumed run would have a "
            "different value. Make it by add_weight in a layer of the model."
        )
        (warned if users <= _READS else lost).append(message)
    # One sentence per layer, however often it draws.
    drawn = {
        (op.type, _layer_of(op, layers)): None
        for op in operations_of(graph)
        if keeps_random_state(op)
    }
    lost += [
        f"{where} draws random numbers with TensorFlow's {kind}, whose state "
        "no checkpoint can hold: a resumed run would draw different ones. Draw "
        "with keras.random, such as keras.random.normal, without a seed or "
        "with a keras.random.SeedGenerator."
        for kind, where in drawn
    ]
    if training:
        untracked.lost = lost
        if refuse:
            untracked.require_nothing_lost()
    for message in lost + warned:
        logging.warning(message)


def _layer_of(operation: tf.Operation, layers: set[str]) -> str:
    layer = layer_of(operation, layers)
    return "The step" if layer is None else f"The layer {layer!r}"


def _users(tensor: Any) -> Iterator[str]:
    """Types of the operations that use a tensor, in functions as well."""
    for op in tensor.consumers():
        graphs = called_graphs(op)
        if not graphs:
            yield op.type
            continue
        # The first input of these is the condition, which is not handed on.
        skipped = int(op.type.endswith(("If", "Case")))
        for index, given in enumerate(op.inputs):
            if given is tensor:
                for graph in graphs:
                    yield from _users(graph.inputs[index - skipped])


def _shape_of_variable(handle: tf.Tensor) -> tf.TensorShape | None:
    """The shape of a variable; `None` for any other tensor or resource."""
    data = data_of_handle(handle) if handle.dtype == tf.resource else None
    if data is None or not data.is_set:
        return None
    return tf.TensorShape(data.shape_and_type[0].shape)


def _handles(variable: Any) -> list[int]:
    """The ids that graphs capture of a variable: a handle for each copy."""
    variable = native(variable)
    # Distributed variables have one per replica; a plain one has no `values`.
    copies = getattr(variable, "values", None)
    if not isinstance(copies, tuple | list):
        copies = (variable,)
    return [id(copy.handle) for copy in copies]
