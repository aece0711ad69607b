"""Python values as JSON values and arrays, from which no code is read.

An `Encoder` makes a tree: JSON values, NumPy arrays, and a `Node` for all else.
`settled` makes of it what a checkpoint holds, and `decode` the value again.
"""

import collections
import copyreg
import datetime
import decimal
import fractions
import pathlib
import random
import threading
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.step.keras.private import native

_TAG = "__kind__"
# Made again of what their `__reduce_ex__` says; none of them runs code.
_PLAIN = (
    *(set, frozenset, complex, range, slice, random.Random),
    *(collections.deque, collections.OrderedDict, collections.Counter),
    *(collections.defaultdict, decimal.Decimal, fractions.Fraction),
    *(datetime.datetime, datetime.date, datetime.time),
    *(datetime.timedelta, datetime.timezone, type(pathlib.Path())),
)
# What a `defaultdict` makes.
_MAKES = (bool, int, float, str, list, dict, tuple, set)
_NAMED: dict[str, Any] = {one.__name__: one for one in (*_PLAIN, *_MAKES)}
# Each process makes its own.
_OF_PROCESS = (
    threading.Thread,
    keras.utils.Progbar,
    tf.types.experimental.PolymorphicFunction,
)


class Node(NamedTuple):
    """A value that is not one of JSON's.

    Attributes:
        kind: what it is.
        value: a tree.
        of: the class or object that must be there when it is decoded.
    """

    kind: str
    value: Any = None
    of: Any = None


class NotSaved(ValueError):
    """A value cannot be saved; the message says which."""


class Encoder:
    """Makes trees of values, with copies of all that may change.

    Args:
        held: ids of variables that a checkpoint holds anyway.
        package: objects of its classes are saved by their attributes.
    """

    def __init__(self, held: Collection[int], *, package: str) -> None:
        self._held = held
        self._package = package
        # Whatever leads back to itself stays as it is there.
        self._within: list[int] = []

    def tree(self, value: Any) -> Any:
        """The tree of a value."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._within:
            return Node("kept", of=value)
        self._within.append(id(value))
        found = self._part(value)
        self._within.pop()
        return found

    def _part(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is list:
            return [self.tree(one) for one in value]
        if kind is tuple:
            return Node("tuple", self.tree(list(value)))
        if kind is dict:
            if all(type(k) is str and k not in (_TAG, "arrays") for k in value):
                return {name: self.tree(one) for name, one in value.items()}
            return Node("dict", self.tree(list(map(list, value.items()))))
        if kind is bytes:
            return Node("bytes", value.hex())
        if kind in _PLAIN:
            return Node("plain", [kind.__name__, self.tree(_reduced(value))])
        if isinstance(value, type) and value in _MAKES:
            return Node("type", value.__name__)
        if isinstance(value, np.ndarray | np.generic):
            array: Any = np.array(value)
            if array.dtype.kind in "USMm":
                items = self.tree(array.ravel().tolist())
                parts = [array.dtype.str, list(array.shape), items]
                array = Node("array", parts)
            elif array.dtype.kind not in "biufcV" or array.dtype.fields:
                return Node("kept", of=value)
            is_array = isinstance(value, np.ndarray)
            return array if is_array else Node("number", array)
        return self._object(value, kind)

    def _object(self, value: Any, kind: Any) -> Node:
        if isinstance(value, np.random.Generator):
            return Node("state", self.tree(value.bit_generator.state), kind)
        if isinstance(value, np.random.RandomState):
            return Node("state", self.tree(value.get_state(False)), kind)
        variables = _variables_of(value)
        if variables is not None:
            its = [
                [number, one.numpy()]
                for number, one in enumerate(variables)
                if id(native(one)) not in self._held
            ]
            # What has none of its own, such as a part of the model that
            # trains, can be made again.
            return Node("variables", its, value) if its else Node("kept")
        # A variable is a tensor, too.
        if tf.is_tensor(value) and hasattr(value, "numpy"):
            return Node("tensor", self.tree(value.numpy()))
        if isinstance(value, _OF_PROCESS) or hasattr(kind, "close"):
            return Node("kept")
        is_users = kind.__module__.partition(".")[0] == self._package
        if is_users and hasattr(value, "__dict__"):
            return Node("object", self.tree(vars(value)), kind)
        return Node("kept", of=value)


def _variables_of(value: Any) -> list[Any] | None:
    if isinstance(value, keras.Variable | tf.Variable):
        return [value]
    if isinstance(value, keras.Layer | keras.Optimizer | keras.Metric):
        return list(value.variables)
    return None


def _reduced(value: Any) -> list[Any]:
    """Arguments, state, items and pairs: see `object.__reduce__`."""
    if isinstance(value, set | frozenset):
        # In an order that does not depend on the process.
        return [[sorted(value, key=repr)], None, [], []]
    make, given, *more = value.__reduce_ex__(2)
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]
        given = given[1:]
    state, items, pairs = (*more, None, None, None)[:3]
    return [[*given], state, list(items or ()), list(map(list, pairs or ()))]


def is_number(value: Any) -> bool:
    """Whether a tree, or what `settled` made of it, is a single number."""
    if isinstance(value, dict):
        return value.get(_TAG) == "number"
    is_one = isinstance(value, bool | int | float)
    return is_one or (isinstance(value, Node) and value.kind == "number")


def same(one: Any, other: Any) -> bool:
    """Whether two trees are of equal values."""
    return list(_leaves(one)) == list(_leaves(other))


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, np.ndarray):
        yield tree.dtype, tree.shape, tree.tobytes()
    elif isinstance(tree, Node):
        yield tree.kind, id(tree.of)
        yield from _leaves(tree.value)
    elif isinstance(tree, list | dict):
        yield type(tree), list(tree) if isinstance(tree, dict) else len(tree)
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
    else:
        yield repr(tree)


def settled(tree: Any, then: Any) -> Any:
    """What a checkpoint holds of a tree: JSON values and arrays.

    Args:
        tree: of the present value.
        then: of the one that is there in a new process.

    Raises:
        NotSaved: something in it is neither saved nor there.
    """
    if isinstance(tree, Node):
        there = then if isinstance(then, Node) else Node("")
        if tree.of is not None and tree.of is not there.of:
            what = tree.of if isinstance(tree.of, type) else type(tree.of)
            raise NotSaved(f"an object of {what.__name__}")
        inside = there.value if tree.kind in ("tuple", "object") else None
        return {_TAG: tree.kind, "value": settled(tree.value, inside)}
    if isinstance(tree, list):
        return [settled(one, _at(then, i)) for i, one in enumerate(tree)]
    if isinstance(tree, dict):
        return {k: settled(one, _at(then, k)) for k, one in tree.items()}
    return tree


def _at(whole: Any, place: Any) -> Any:
    """What is at a place of a list, tuple or dict; `None` if nothing is."""
    try:
        return whole[place]
    except (TypeError, LookupError):
        return None


def decode(held: Any, now: Any) -> Any:
    """The value that a checkpoint holds.

    Args:
        held: what `settled` returned.
        now: what is in its place.

    Raises:
        Exception: of any kind, if that does not fit.
    """
    if isinstance(held, list):
        return [decode(one, _at(now, i)) for i, one in enumerate(held)]
    if not isinstance(held, dict):
        return held
    if _TAG not in held:
        return {key: decode(one, _at(now, key)) for key, one in held.items()}
    kind = held[_TAG]
    inside = now if kind == "tuple" else None
    if kind == "object":
        inside = vars(now)
    return _decoded(kind, decode(held["value"], inside), now)


def _decoded(kind: str, value: Any, now: Any) -> Any:
    match kind:
        case "tuple" | "dict":
            return _NAMED[kind](value)
        case "bytes":
            return bytes.fromhex(value)
        case "type":
            return _NAMED[value]
        case "tensor":
            return tf.constant(value)
        case "number":
            return value[()]
        case "array":
            dtype, shape, items = value
            return np.array(items, dtype).reshape(shape)
        case "plain":
            name, (given, state, items, pairs) = value
            made = _NAMED[name](*given)
            if state is not None:
                made.__setstate__(state)
            for item in items:
                made.append(item)
            if pairs:
                made.update(pairs)
            return made
        case "state":
            if isinstance(now, np.random.Generator):
                now.bit_generator.state = value
            else:
                now.set_state(value)
        case "variables":
            variables = _variables_of(now) or []
            for number, one in value:
                variables[number].assign(one)
        case "object":
            vars(now).update(value)
        case _ if kind != "kept":
            raise ValueError(f"no kind {kind}")
    return now
