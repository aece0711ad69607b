"""Finds the state that a traced step uses and Keras does not track.

A resumed run needs all the state that its steps have left. Keras only knows
the variables that it tracks. The graph of a step shows all variables, and the
random operations that keep a state of their own:

- A variable that was made by the model function, a layer or an optimizer, or
  is an attribute of the Trainer, is saved with the rest, tracked or not.
- Any other variable has no name by which the next process would know it. If
  the step writes it, a run that saves is refused. If the step only reads it,
  or if nothing is saved, there is a warning.
- A random operation such as `tf.random.normal` keeps its state inside
  TensorFlow, and is treated like a variable that the step writes.
"""

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

# There is no public way to tell which resources are variables.
from tensorflow.python.ops import resource_variable_ops

from trainer.errors import UserError
from trainer.step.keras.private import all_layers, native

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
_NUMBERED = re.compile(r"_\d+$")


class Untracked:
    """Variables that may have to be saved, though Keras does not track them.

    Which of them a step touches is known once it has been traced. A checkpoint
    is restored before that, so its values are kept until then.

    Args:
        made: variables that the model function, layers and optimizers have
            made, in their order.
        known: those that are saved anyway, or need not be.

    Attributes:
        lost: sentences about the state of the training step that no
            checkpoint can hold.
    """

    def __init__(
        self, made: Sequence[tf.Variable], *, known: Sequence[Any]
    ) -> None:
        self._known = {key for one in known for key in _handles(one)}
        self._named: dict[int, str] = {}
        # Weak references: much of what was made is thrown away, such as whole
        # models, and must not stay in memory.
        self._variables: dict[str, weakref.ref[tf.Variable]] = {}
        self._stored: dict[str, Any] = {}
        self._touched: set[str] = set()
        self.lost: list[str] = []
        for i, variable in enumerate(made):
            self._offer(f"{i:04d}", variable)

    def offer_attributes(self, owner: Any) -> None:
        """Adds the variables that are attributes of an object."""
        for name, value in vars(owner).items():
            if isinstance(value, tf.Variable | keras.Variable):
                self._offer(name, native(value))

    def require_nothing_lost(self) -> None:
        """Checks that checkpoints can hold all that training leaves.

        Raises:
            UserError: a resumed run would go on differently.
        """
        if self.lost:
            raise UserError(self.lost[0])

    def touch(self, handle: Any) -> bool:
        """Notes that a step touches a variable; whether it is known."""
        if id(handle) in self._known:
            return True
        key = self._named.get(id(handle))
        variable = self._variables[key]() if key is not None else None
        if key is None or variable is None:
            return False
        if key not in self._touched:
            self._touched.add(key)
            if key in self._stored:
                # The step is being traced: the value is assigned now, not in
                # the graph.
                with tf.init_scope():
                    self._assign(key, self._stored.pop(key))
        return True

    def state(self) -> dict[str, Any]:
        """Values by name, for a checkpoint."""
        with tf.device("CPU:0"):
            return self._stored | {
                key: tf.identity(self._variable(key).read_value())
                for key in sorted(self._touched)
            }

    def load(self, values: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            UserError: a variable has another shape now.
        """
        self._stored = dict(values)
        for key in sorted(self._touched & self._stored.keys()):
            self._assign(key, self._stored.pop(key))

    def _offer(self, key: str, variable: tf.Variable) -> None:
        handles = _handles(variable)
        is_number = variable.dtype.is_floating or variable.dtype.is_integer
        # Strings and resources, such as lookup tables, are not trained.
        if not (is_number or variable.dtype.is_bool):
            return
        if not self._known.intersection(handles):
            self._variables[key] = weakref.ref(variable)
            self._named |= dict.fromkeys(handles, key)

    def _variable(self, key: str) -> tf.Variable:
        variable = self._variables[key]()
        assert variable is not None  # The step's graph keeps it.
        return variable

    def _assign(self, key: str, value: Any) -> None:
        variable = self._variable(key)
        if tuple(np.shape(value)) != tuple(variable.shape):
            raise UserError(
                f"The checkpoint is of another model: a variable that Keras "
                f"does not track, {variable.name}, has the shape "
                f"{tuple(variable.shape)}, but {np.shape(value)} there. Choose "
                "another --model_dir, or start from it with --init_from."
            )
        variable.assign(tf.cast(value, variable.dtype))


def captured() -> set[int]:
    """The resources that the graph being traced has captured so far."""
    if tf.executing_eagerly():
        return set()
    graph = tf.compat.v1.get_default_graph()
    return {id(outer) for outer, _ in graph.captures}


@tf.autograph.experimental.do_not_convert
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
        untracked: notes what the step touches.
        model: whose layers are named.
        before: what `captured` returned at the beginning of the step: these
            are the strategy's.
        training: whether it is a training step. What an evaluation leaves is
            never refused.
        refuse: whether the run saves.

    Raises:
        UserError: a run that saves would go on differently once it is resumed.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    layers = {layer.name for layer in all_layers(model)}
    lost: list[str] = []
    warned: list[str] = []
    for outer, inner in graph.captures:
        if id(outer) in before or not _is_variable(outer):
            continue
        # Not saved anyway, and not one that `untracked` can save.
        if not untracked.touch(outer):
            users = set(_users(inner))
            if all(kind.startswith(_COLLECTIVE) for kind in users):
                continue
            where = _layer_of(inner.op.name, layers)
            message = _of_variable(graph, outer, where)
            (warned if users <= _READS else lost).append(message)
    named = set()  # One sentence per layer, however often it draws.
    for op in _random_operations(graph, {}):
        where = _layer_of(op.name, layers)
        if (op.type, where) not in named:
            named.add((op.type, where))
            lost.append(_of_operation(op.type, where))
    if training:
        untracked.lost = lost
        if refuse:
            untracked.require_nothing_lost()
    for message in lost + warned:
        logging.warning(message)


def _of_variable(graph: Any, handle: Any, where: str) -> str:
    # Only variables that are read are watched: others have no name here.
    watched = getattr(graph, "_watched_variables", ())
    names = [v.name for v in watched if id(handle) in _handles(v)]
    data = resource_variable_ops.get_eager_safe_handle_data(handle)
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    name = names[0] if names else f"a tf.Variable of shape {shape}"
    return (
        f"{where} uses {name}, which was made outside of the model function, "
        "so no checkpoint holds it: a resumed run would have another value. "
        "Make it in the model function or in a layer, or make it an attribute "
        "of the Trainer."
    )


def _of_operation(kind: str, where: str) -> str:
    return (
        f"{where} draws random numbers with TensorFlow's {kind}, whose state "
        "no checkpoint can hold: a resumed run would draw others. Draw with "
        "keras.random, such as keras.random.normal, without a seed or with a "
        "keras.random.SeedGenerator."
    )


def _layer_of(name: str, layers: set[str]) -> str:
    """The innermost layer in whose scope an operation was made."""
    for part in reversed(name.split("/")):
        for candidate in (part, _NUMBERED.sub("", part)):
            if candidate in layers:
                return f"The layer {candidate!r}"
    return "The step"


def _is_variable(tensor: Any) -> bool:
    if tensor.dtype != tf.resource:
        return False
    data = resource_variable_ops.get_eager_safe_handle_data(tensor)
    return bool(data is not None and data.is_set)


def _users(tensor: Any) -> Iterator[str]:
    """Types of the operations that use a tensor, in functions as well."""
    for op in tensor.consumers():
        graphs = _called(op)
        if not graphs:
            yield op.type
            continue
        # The first input of these is the condition, which is not handed on.
        skipped = int(op.type.endswith(("If", "Case")))
        for index, given in enumerate(op.inputs):
            if given is tensor:
                for graph in graphs:
                    yield from _users(graph.inputs[index - skipped])


def _called(op: Any) -> list[Any]:
    """The graphs of the functions that an operation calls."""
    # Functions are attributes of an operation: conditions, loops, calls.
    names: list[str] = []
    for attribute in op.op_def.attr:
        if attribute.type == "func":
            names.append(op.get_attr(attribute.name).name)
        elif attribute.type == "list(func)":
            names += [one.name for one in op.get_attr(attribute.name)]
    functions = [op.graph._functions.get(name) for name in names]
    found = [getattr(one, "graph", None) for one in functions]
    return [] if None in found else found


def _handles(variable: Any) -> list[int]:
    """The ids that graphs capture of a variable: a handle for each copy."""
    variable = native(variable)
    # Distributed variables have one per replica; a plain one has no `values`.
    copies = getattr(variable, "values", None)
    if not isinstance(copies, tuple | list):
        copies = (variable,)
    return [id(copy.handle) for copy in copies]


def _random_operations(
    graph: Any, kinds: dict[str, bool], seen: set[int] | None = None
) -> Iterator[Any]:
    """Operations of a graph, and of those in it, that keep a random state."""
    seen = set() if seen is None else seen
    if id(graph) in seen:
        return
    seen.add(id(graph))
    for op in graph.get_operations():
        if op.type not in kinds:
            # All of TensorFlow's stateful random operations have a second seed,
            # also those that a later version adds.
            kinds[op.type] = bool(op.op_def.is_stateful) and any(
                attribute.name == "seed2" for attribute in op.op_def.attr
            )
        if kinds[op.type]:
            yield op
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None:
            yield from _random_operations(inner, kinds, seen)
