"""Averages, and sums of the logs of steps in one strict order.

Additions round, so their order shows in a sum's last bits. Each replica
therefore adds up its own results step by step, in float64, and a graph call
goes on where the previous one stopped. Replicas are only added up when a sum
is read. So no sum depends on where a graph call ended, or on whether the run
was stopped in between.
"""

import dataclasses
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


class Layout:
    """The positions of a step's results in one vector.

    Args:
        results: a structure of tensors, arrays or their specs, by name.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        # Only the structure is kept: specs would keep the graph alive.
        self._structure = {
            name: tf.nest.map_structure(lambda _: 0, value)
            for name, value in results.items()
        }
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._columns: dict[str, list[slice]] = {}
        self.size = 0
        # Scalars come first: one operation packs them all.
        for scalars in (True, False):
            for name in sorted(results):
                leaves = tf.nest.flatten(results[name])
                shapes = [tuple(leaf.shape) for leaf in leaves]
                columns = self._columns.setdefault(
                    name, [slice(0)] * len(leaves)
                )
                self._shapes[name] = shapes
                for i, shape in enumerate(shapes):
                    if (not shape) == scalars:
                        begin, self.size = self.size, self.size + _count(shape)
                        columns[i] = slice(begin, self.size)

    @property
    def names(self) -> list[str]:
        """The names of the results."""
        return list(self._columns)

    def pack(self, results: Mapping[str, Any]) -> tf.Tensor:
        """A step's results as a float64 vector; for a graph."""
        found = [
            (columns.start, columns.stop, leaf)
            for name, all_columns in self._columns.items()
            for columns, leaf in zip(
                all_columns, tf.nest.flatten(results[name]), strict=True
            )
        ]
        parts: list[Any] = []
        run: list[Any] = []
        # In the order of their columns, so that neighbouring scalars of one
        # dtype can be stacked in one operation.
        for *_, leaf in sorted(found, key=lambda one: one[:2]):
            # tf.stack takes scalars of one dtype.
            if run and (leaf.shape.rank or leaf.dtype != run[0].dtype):
                parts.append(tf.stack(run))
                run = []
            if leaf.shape.rank:
                parts.append(tf.reshape(leaf, [-1]))
            else:
                run.append(leaf)
        parts += [tf.stack(run)] if run else []
        wide = [tf.cast(part, tf.float64) for part in parts]
        return wide[0] if len(wide) == 1 else tf.concat(wide, 0)

    def unpack(self, rows: np.ndarray) -> dict[str, Any]:
        """Results by name, from an array whose last axis was packed."""
        found = {}
        for name, structure in self._structure.items():
            leaves = [
                rows[..., columns].reshape((*rows.shape[:-1], *shape))
                for columns, shape in zip(
                    self._columns[name], self._shapes[name], strict=True
                )
            ]
            found[name] = tf.nest.pack_sequence_as(structure, leaves)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def columns(self, name: str) -> list[slice]:
        """The columns of each tensor under a name."""
        return self._columns[name]

    def copy_to(self, other: "Layout", rows: np.ndarray) -> np.ndarray:
        """The same sums in another layout; zero for what is missing here."""
        made = np.zeros((len(rows), other.size))
        for name, shapes in other._shapes.items():
            if self._shapes.get(name) == shapes:
                for to, of in zip(
                    other._columns[name], self._columns[name], strict=True
                ):
                    made[:, to] = rows[:, of]
        return made


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums over some steps.

    What a graph call returned is not split, so that the next call can take it
    as it is, without a copy.

    Attributes:
        layout: the positions of results.
        stack: float64 of shape `[sums, replicas, layout.size]`.
        index: which of the sums it is.
    """

    layout: Layout
    stack: Any
    index: int = 0

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> "Sums":
        """Sums from arrays whose first axis counts replicas."""
        ours = {
            name: tf.nest.map_structure(np.asarray, value)
            for name, value in results.items()
        }
        # The layout is that of one replica.
        layout = Layout(
            {
                name: tf.nest.map_structure(lambda a: a[0], value)
                for name, value in ours.items()
            }
        )
        count = max(len(a) for a in tf.nest.flatten(ours))
        rows = np.zeros((count, layout.size))
        for name, value in ours.items():
            for columns, array in zip(
                layout.columns(name), tf.nest.flatten(value), strict=True
            ):
                # Arrays from a checkpoint may be of fewer replicas: the rest is
                # zero.
                rows[: len(array), columns] = array.reshape(len(array), -1)
        return cls(layout, rows[np.newaxis])

    @classmethod
    def nothing(cls, layout: Layout, replicas: int = 1) -> "Sums":
        """Sums before any step."""
        return cls(layout, np.zeros((1, replicas, layout.size)))

    @property
    def rows(self) -> np.ndarray:
        """The sums of each replica: `[replicas, layout.size]`."""
        found: np.ndarray = np.asarray(self.stack)[self.index]
        return found

    def by_replica(self) -> dict[str, Any]:
        """The sums by name; the first axis counts replicas."""
        return self.layout.unpack(self.rows)

    def total(self) -> dict[str, Any]:
        """The sums over all replicas, by name."""
        return self.layout.unpack(self.rows.sum(axis=0))

    def fitted(self, layout: Layout, replicas: int) -> np.ndarray:
        """The rows for a run of another layout, or of more or fewer replicas.

        If the number of replicas differs, the first one gets the whole sum.
        """
        rows = self.rows
        if layout is not self.layout:
            rows = self.layout.copy_to(layout, rows)
        # Row by row only if the replicas are as many as before: otherwise the
        # order of additions changes anyway.
        if len(rows) == replicas:
            return rows
        made = np.zeros((replicas, layout.size))
        made[0] = rows.sum(axis=0)
        return made


@dataclasses.dataclass(frozen=True)
class Growth:
    """By how much an `Average`'s total has grown, over all replicas.

    Reading it, by `float`, waits for the device.
    """

    name: str
    before: Sums | None
    after: Sums

    def __float__(self) -> float:
        return self._total(self.after) - self._total(self.before)

    def _total(self, sums: Sums | None) -> float:
        if sums is None or self.name not in sums.layout:
            return 0.0
        total, _ = sums.layout.columns(self.name)
        return float(sums.rows[:, total].sum())


def stacked(
    carried: Sequence[Sums | None], layout: Layout, replicas: int
) -> Any:
    """What a graph call goes on from: `[len(carried), replicas, size]`."""
    first = carried[0]
    # The usual case: all sums come from one graph call, whose result goes
    # straight into the next one, without a look at its values.
    if first is not None and all(
        sums is not None
        and (sums.stack is first.stack)
        and (sums.layout is layout)
        and (sums.index == i)
        for i, sums in enumerate(carried)
    ):
        shape = (len(carried), replicas, layout.size)
        if tuple(first.stack.shape) == shape:
            return first.stack
    nothing = Sums.nothing(layout, replicas)
    return np.stack(
        [(sums or nothing).fitted(layout, replicas) for sums in carried]
    )


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
