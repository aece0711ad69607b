"""Python values as bytes, from which no code is read.

They are pickles that can name only the classes and functions listed here. For
any other object, they hold its state, and the number of the existing object
that gets this state.
"""

import collections
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import random
import threading
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.step.keras.private import native

_VALUES = {
    *(type(None), bool, int, float, complex, str, bytes, range, slice),
    *(list, dict, tuple, np.ndarray, pickle.PickleBuffer, random.Random),
    *(collections.deque, collections.OrderedDict, collections.Counter),
    *(collections.defaultdict, decimal.Decimal, fractions.Fraction),
    *(datetime.datetime, datetime.date, datetime.time),
    *(datetime.timedelta, datetime.timezone, type(pathlib.Path())),
}
# What pickles name; none of it runs code. The functions make arrays.
_NAMED: dict[str, Any] = {
    one.__name__: one
    for one in (
        *(*_VALUES, set, frozenset, np.dtype, tf.bfloat16.as_numpy_dtype),
        *(np.zeros(0).__reduce__()[0], np.zeros(0).__reduce_ex__(5)[0]),
        np.float32(0).__reduce__()[0],
    )
}
# Each process makes its own.
_OF_PROCESS = (
    threading.Thread,
    keras.utils.Progbar,
    tf.types.experimental.PolymorphicFunction,
)
_MADE_AGAIN = -1


class NotSaved(ValueError):
    """A value cannot be saved; the message says which."""


class Encoded(NamedTuple):
    """A value.

    Attributes:
        data: its bytes.
        objects: those that it refers to, by their numbers.
    """

    data: bytes = b""
    objects: Sequence[Any] = ()


class Encoder:
    """Makes bytes of values.

    Args:
        held: ids of variables that a checkpoint holds anyway.
        package: objects of its classes are saved by their attributes.
    """

    def __init__(self, held: Collection[int], *, package: str) -> None:
        self._held = held
        self._package = package

    def bytes_of(
        self, value: Any, there: Sequence[Any], *, grows: bool = False
    ) -> Encoded:
        """The bytes of a value.

        Args:
            value: lists and the like in it do not lead back to themselves.
            there: the objects that have a number already.
            grows: whether others get one.

        Raises:
            NotSaved: something in it is neither a value nor has a number.
            ValueError: it leads back to itself; or a `RecursionError`.
        """
        file = io.BytesIO()
        pickler = _Pickler(file, self, there, grows)
        pickler.dump(value)
        return Encoded(file.getvalue(), pickler.objects)

    def is_made_again(self, value: Any) -> bool:
        """Whether each process makes its own, or its model has it."""
        if isinstance(value, _OF_PROCESS) or hasattr(type(value), "close"):
            return True
        variables = _variables_of(value)
        return variables is not None and not self._own(variables)

    def keeps(self, value: Any) -> Any:
        """Returns an object's state as a value; `None` if it is unknown."""
        if isinstance(value, np.random.Generator):
            return value.bit_generator.state
        if isinstance(value, np.random.RandomState):
            return value.get_state(legacy=False)
        variables = _variables_of(value)
        if variables is not None:
            return self._own(variables)
        return dict(vars(value)) if self.is_users(value) else None

    def is_users(self, value: Any) -> bool:
        """Whether an object is saved by its attributes."""
        name = type(value).__module__.partition(".")[0]
        return name == self._package and hasattr(value, "__dict__")

    def _own(self, variables: Sequence[Any]) -> list[tuple[int, Any]]:
        """Number and value of those that no checkpoint holds anyway."""
        return [
            (number, one.numpy())
            for number, one in enumerate(variables)
            if id(native(one)) not in self._held
        ]

    def value_of(self, data: Any, there: Sequence[Any] | None) -> Any:
        """The value; the objects in it get what they kept.

        Args:
            data: of an `Encoded`.
            there: the objects. Without them, `None` stands for each in the
                value, and nothing changes.

        Raises:
            Exception: of any kind, if it is no such data, or does not fit.
        """
        # An earlier version has saved numbers as they are.
        if data is None or isinstance(data, int | float):
            return data
        return _Unpickler(io.BytesIO(data), self, there).load()


class _Pickler(pickle.Pickler):
    def __init__(
        self,
        file: io.BytesIO,
        encoder: Encoder,
        there: Sequence[Any],
        grows: bool,
    ) -> None:
        super().__init__(file, protocol=5)
        # Equal values have equal bytes, also where one of them is in two
        # places.
        self.fast = True
        self.objects = list(there)
        self._encoder = encoder
        self._grows = grows
        self._known: set[int] = set()

    def persistent_id(self, value: Any) -> Any:
        """Returns an object's substitute; `None` if it is pickled itself."""
        kind = type(value)
        if kind in _VALUES or isinstance(value, np.generic | np.dtype):
            return None
        if any(value is one for one in _NAMED.values()):
            return None
        if kind in (set, frozenset):
            # In an order that does not depend on the process.
            return kind.__name__, sorted(value, key=repr)
        is_variable = _variables_of(value) is not None
        if tf.is_tensor(value) and hasattr(value, "numpy") and not is_variable:
            return "tensor", value.numpy()
        if id(value) in self._known:
            return self._number(value), None
        self._known.add(id(value))
        return self._number(value), self._encoder.keeps(value)

    def reducer_override(self, value: Any) -> Any:
        """An array in one layout, whatever it is a view of."""
        if type(value) is np.ndarray:
            return np.asarray(value, order="C").__reduce_ex__(5)
        return NotImplemented

    def _number(self, value: Any) -> int:
        for number, one in enumerate(self.objects):
            if one is value:
                return number
        if self._grows:
            self.objects.append(value)
            return len(self.objects) - 1
        if self._encoder.is_made_again(value):
            return _MADE_AGAIN
        what = value if isinstance(value, type) else type(value)
        raise NotSaved(f"an object of {what.__name__}")


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        encoder: Encoder,
        there: Sequence[Any] | None,
    ) -> None:
        super().__init__(file)
        self._encoder = encoder
        self._there = there

    def find_class(self, module: str, name: str) -> Any:
        """Returns a named object, and nothing from anywhere else."""
        return _NAMED[name]

    def persistent_load(self, pid: Any) -> Any:
        """Returns the object for what `persistent_id` returned."""
        number, keeps = pid
        if number == "tensor":
            return tf.constant(keeps)
        if isinstance(number, str):
            return _NAMED[number](keeps)
        if self._there is None or number == _MADE_AGAIN:
            return None
        value = self._there[number]
        if keeps is None:
            return value
        variables = _variables_of(value)
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = keeps
        elif isinstance(value, np.random.RandomState):
            value.set_state(keeps)
        elif variables is not None:
            for place, one in keeps:
                variables[place].assign(one)
        elif self._encoder.is_users(value):
            vars(value).update(keeps)
        return value


def _variables_of(value: Any) -> list[Any] | None:
    if isinstance(value, keras.Variable | tf.Variable):
        return [value]
    if isinstance(value, keras.Layer | keras.Optimizer | keras.Metric):
        return list(value.variables)
    return None
