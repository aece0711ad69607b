"""Examples with random access by index."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted


class Examples(abc.ABC):
    """A fixed set of examples with random access.

    Attributes:
        size: the number of examples.
        shuffle: whether training visits them in a new order in each epoch.
    """

    size: int
    shuffle: bool = True

    @abc.abstractmethod
    def gather(self, numbers: tf.Tensor) -> Any:
        """Reads examples inside a `tf.data` graph.

        Args:
            numbers: int64 indices of shape `[n]`, each in `[0, size)`; `n`
                may be 0.

        Returns:
            A structure of tensors of shape `[n, ...]`: `x`, `(x, y)` or
            `(x, y, sample_weight)`.
        """

    def columns(self) -> Any:
        """All examples as tensors, if `gather` does nothing but take rows.

        Returns:
            Tensors of shape `[size, ...]`, in the structure that `gather`
            returns; otherwise `None`.
        """
        return None


class ArrayExamples(Examples):
    """Examples held in memory as arrays with one row per example.

    Args:
        arrays: a structure of arrays of shape `[size, ...]`, such as
            `(x, y)`.
        transform: applied to each batch inside a `tf.data` graph, such as a
            cast from the type in which the arrays fit in memory. It is called
            like the function of `Dataset.map`: with the parts of a tuple, or
            with one structure.
        shuffle: whether training shuffles them.

    Raises:
        UserError: there is no array, an array is empty, or lengths differ.
    """

    def __init__(
        self,
        arrays: Any,
        *,
        transform: Callable[..., Any] | None = None,
        shuffle: bool = True,
    ) -> None:
        # Of a sparse matrix, `np.asarray` would make a single object.
        leaves: list[Any] = [
            SparseRows(leaf)
            if is_sparse(leaf)
            else leaf
            if isinstance(leaf, tf.RaggedTensor)
            else np.asarray(leaf)
            for leaf in tf.nest.flatten(arrays)
        ]
        lengths = [int(leaf.shape[0]) if leaf.shape else 0 for leaf in leaves]
        if not leaves or len(set(lengths)) != 1 or not lengths[0]:
            raise UserError(
                "Arrays of examples need one row per example and equal "
                f"lengths. Their lengths are {lengths}."
            )
        self.size = lengths[0]
        self.shuffle = shuffle
        self._transform = transform
        # Without the arrays, which need not be kept once there are columns.
        self._structure = tf.nest.map_structure(lambda _: 0, arrays)
        self._leaves = leaves
        if any(
            getattr(leaf, "dtype", None) == np.dtype(object) for leaf in leaves
        ):
            _ = self._columns  # Whether they are text shows only here.

    @functools.cached_property
    def _columns(self) -> list[Any]:
        """The arrays as tensors.

        Made on first use: a cluster's strategy must exist before the first
        tensor.
        """
        # On the host under any strategy, because the input pipeline runs there;
        # and outside of its graph, which would hold a copy.
        with tf.init_scope(), tf.device("CPU:0"):
            # One after the other, so that each array can be freed before the
            # next one is copied.
            for index, leaf in enumerate(self._leaves):
                if not isinstance(leaf, _NOT_DENSE):
                    # What `tf.constant` makes of an array keeps a second copy
                    # of it for as long as it lives.
                    try:
                        self._leaves[index] = tf.identity(tf.constant(leaf))
                    except ValueError as error:
                        raise UserError(
                            f"The data cannot be made into a tensor: {error}"
                        ) from None
        return self._leaves

    def columns(self) -> Any:
        """See `Examples.columns`."""
        is_own = type(self).gather is not ArrayExamples.gather
        if (
            is_own
            or self._transform is not None
            or any(isinstance(column, _NOT_DENSE) for column in self._columns)
        ):
            return None
        columns = tf.nest.pack_sequence_as(self._structure, self._columns)
        return keras.tree.lists_to_tuples(columns)

    def gather(self, numbers: tf.Tensor) -> Any:
        """See `Examples.gather`."""
        rows = [
            column.gather(numbers)
            if isinstance(column, SparseRows)
            else tf.gather(column, numbers)
            for column in self._columns
        ]
        batch = tf.nest.pack_sequence_as(self._structure, rows)
        if self._transform is not None:
            if isinstance(batch, tuple):
                batch = converted(self._transform)(*batch)
            else:
                batch = converted(self._transform)(batch)
        # tf.data would stack a list into one tensor.
        return keras.tree.lists_to_tuples(batch)


def is_sparse(part: Any) -> bool:
    """Whether an array is a sparse matrix of TensorFlow, SciPy or JAX."""
    return isinstance(part, tf.SparseTensor) or (
        hasattr(part, "tocoo") or hasattr(part, "n_sparse")
    )


def as_sparse(matrix: Any) -> tf.SparseTensor:
    """What `is_sparse` is true of, as a tensor whose indices are in order."""
    if not isinstance(matrix, tf.SparseTensor):
        if hasattr(matrix, "tocoo"):
            matrix = matrix.tocoo()
            indices = np.stack([matrix.row, matrix.col], axis=1)
        else:
            indices = np.asarray(matrix.indices)
        matrix = tf.SparseTensor(
            indices.astype(np.int64), np.asarray(matrix.data), matrix.shape
        )
    # SciPy does not promise it.
    return tf.sparse.reorder(matrix)


class SparseRows:
    """A sparse matrix with random access to its rows.

    Args:
        matrix: a `tf.SparseTensor` of rank 2, or a SciPy matrix.
    """

    def __init__(self, matrix: Any) -> None:
        matrix = as_sparse(matrix)
        rows, columns = tf.unstack(matrix.indices, axis=1)
        self._size, self._width = map(int, matrix.shape)
        # Ragged, because gathering rows of a `SparseTensor` takes time
        # proportional to the whole matrix.
        self._columns, self._values = (
            tf.RaggedTensor.from_value_rowids(part, rows, nrows=self._size)
            for part in (columns, matrix.values)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return self._size, self._width

    def gather(self, numbers: tf.Tensor) -> tf.SparseTensor:
        """Returns the rows with these indices, as a sparse matrix."""
        columns = tf.gather(self._columns, numbers)
        values = tf.gather(self._values, numbers)
        indices = tf.stack([columns.value_rowids(), columns.values], axis=1)
        count = tf.shape(numbers, tf.int64)[0]
        made = tf.SparseTensor(indices, values.values, [count, self._width])
        made.set_shape([None, self._width])
        return made


_NOT_DENSE = (SparseRows, tf.RaggedTensor)
