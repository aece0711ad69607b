"""Averages, and sums of the results of steps in one strict order.

Additions round, so their order shows in a sum's last bits. Each replica
therefore adds up its own results step by step, in float64, and a graph call
continues where the previous one stopped. Replicas are only added up when a sum
is read. So no sum depends on where a graph call ended, or on whether the run
was stopped in between.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Average(NamedTuple):
    """A mean before its division.

    Attributes:
        total: float32 scalar, the weighted sum of the values.
        count: float32 scalar, the sum of the weights.
    """

    total: tf.Tensor
    count: tf.Tensor

    @property
    def value(self) -> tf.Tensor:
        """The mean; zero where nothing was counted."""
        return tf.math.divide_no_nan(self.total, self.count)


def average(total: tf.Tensor, count: tf.Tensor | float = 1.0) -> Average:
    """Makes an `Average` of float32 scalars.

    Args:
        total: scalar, the weighted sum of some values.
        count: scalar, the sum of their weights.
    """
    return Average(tf.cast(total, tf.float32), tf.cast(count, tf.float32))


class Packing:
    """How a step's results are packed into one vector.

    Args:
        results: a structure of tensors, arrays or their specs, by name.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        # Only the structure is kept: specs would keep the graph alive.
        self._structure = {
            name: tf.nest.map_structure(lambda _: 0, value)
            for name, value in results.items()
        }
        leaves = [
            (name, i, leaf)
            for name in sorted(results)
            for i, leaf in enumerate(tf.nest.flatten(results[name]))
        ]
        # Most are float32 scalars. They come first: one operation packs them.
        scalars = [one for one in leaves if _is_scalar(one[2])]
        rest = [one for one in leaves if not _is_scalar(one[2])]
        self._scalars = len(scalars)
        # By name and number, in the order of the vector.
        self._columns: dict[tuple[str, int], tuple[slice, tuple[int, ...]]] = {}
        self.size = 0
        for name, i, leaf in scalars + rest:
            begin, shape = self.size, tuple(leaf.shape)
            self.size += int(np.prod(shape, dtype=np.int64))
            self._columns[name, i] = slice(begin, self.size), shape

    @property
    def names(self) -> list[str]:
        """The names of the results."""
        return list(self._structure)

    def pack(self, results: Mapping[str, Any]) -> tf.Tensor:
        """A step's results as a float64 vector; for a graph."""
        flat = {name: tf.nest.flatten(value) for name, value in results.items()}
        leaves = [flat[name][i] for name, i in self._columns]
        scalars, rest = leaves[: self._scalars], leaves[self._scalars :]
        parts = [tf.stack(scalars)] if scalars else []
        parts += [tf.reshape(leaf, [-1]) for leaf in rest]
        wide = [tf.cast(part, tf.float64) for part in parts]
        return wide[0] if len(wide) == 1 else tf.concat(wide, 0)

    def rows(self, results: Mapping[str, Any], replicas: int) -> np.ndarray:
        """Packs arrays whose first axis counts replicas.

        Args:
            results: perhaps of another run or form of the step; what is
                missing, or of another shape, counts as zero.
            replicas: how many there are now. If there were others, the first
                one gets the whole sum: the order of additions changes anyway.
        """
        rows = np.zeros((replicas, self.size))
        for name, value in results.items():
            for i, array in enumerate(tf.nest.flatten(value)):
                columns, shape = self._columns.get((name, i), (None, ()))
                if columns is None or array.shape[1:] != shape:
                    continue
                if len(array) == replicas:
                    rows[:, columns] = array.reshape(replicas, -1)
                else:
                    rows[0, columns] = array.sum(axis=0).reshape(-1)
        return rows

    def unpack(self, rows: np.ndarray) -> dict[str, Any]:
        """Results by name, from an array whose last axis was packed."""
        flat: dict[str, list[np.ndarray]] = {name: [] for name in self.names}
        # In the order of each result's own parts.
        for name, i in sorted(self._columns):
            columns, shape = self._columns[name, i]
            part = rows[..., columns].reshape((*rows.shape[:-1], *shape))
            flat[name].append(part)
        return {
            name: tf.nest.pack_sequence_as(structure, flat[name])
            for name, structure in self._structure.items()
        }


def _is_scalar(leaf: Any) -> bool:
    return not leaf.shape and leaf.dtype == tf.float32


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums over some steps.

    What a graph call returned is not split, so that the next call can take it
    as it is, without a copy.

    Attributes:
        packing: of the results.
        stack: float64 of shape `[sums, replicas, packing.size]`.
        index: which of the sums it is.
    """

    packing: Packing
    stack: Any
    index: int = 0

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> "Sums":
        """Sums from arrays whose first axis counts replicas."""
        first = tf.nest.map_structure(lambda array: array[0], dict(results))
        count = max(map(len, tf.nest.flatten(dict(results))), default=1)
        packing = Packing(first)
        return cls(packing, packing.rows(results, count)[np.newaxis])

    @property
    def rows(self) -> np.ndarray:
        """The sums of each replica: `[replicas, packing.size]`."""
        found: np.ndarray = np.asarray(self.stack)[self.index]
        return found

    def by_replica(self) -> dict[str, Any]:
        """The sums by name; the first axis counts replicas."""
        return self.packing.unpack(self.rows)

    @functools.cached_property
    def total(self) -> dict[str, Any]:
        """The sums over all replicas, by name."""
        return self.packing.unpack(self.rows.sum(axis=0))


def stacked(
    carried: Sequence[Sums | None], packing: Packing, replicas: int
) -> Any:
    """Sums to continue from, of shape `[len(carried), replicas, size]`."""
    first = carried[0]
    # The usual case: all sums come from one graph call, whose result goes
    # straight into the next one, without a look at its values.
    if first is not None and all(
        sums is not None
        and (sums.stack is first.stack)
        and (sums.packing is packing)
        and (sums.index == i)
        for i, sums in enumerate(carried)
    ):
        shape = (len(carried), replicas, packing.size)
        if tuple(first.stack.shape) == shape:
            return first.stack
    return np.stack(
        [
            packing.rows(sums.by_replica() if sums else {}, replicas)
            for sums in carried
        ]
    )
