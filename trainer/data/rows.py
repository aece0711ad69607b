"""Access to the rows of a batch, whose parts may be sparse."""

from typing import Any

import tensorflow as tf


def count_rows(batch: Any) -> tf.Tensor:
    """Returns the number of examples in a batch, as an int64 scalar."""
    part = tf.nest.flatten(batch)[0]
    # `tf.shape` does not take a sparse tensor.
    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    return tf.shape(part, tf.int64)[0]


def take_rows(batch: Any, begin: Any, end: Any) -> Any:
    """Returns the examples of a batch from `begin` up to `end`."""

    def cut(part: Any) -> Any:
        if not isinstance(part, tf.SparseTensor):
            return part[begin:end]
        first = tf.cast(begin, tf.int64)
        last = tf.minimum(tf.cast(end, tf.int64), part.dense_shape[0])
        start = tf.concat([[first], tf.zeros_like(part.dense_shape[1:])], 0)
        size = tf.concat([[last - first], part.dense_shape[1:]], 0)
        # Slicing loses the static shape of the examples.
        shape = [None, *part.shape[1:]]
        return _with_shape(tf.sparse.slice(part, start, size), shape)

    return tf.nest.map_structure(cut, batch)


class SparseRows:
    """A sparse matrix with random access to its rows.

    Args:
        matrix: a `tf.SparseTensor` of rank 2, or a SciPy matrix.
    """

    def __init__(self, matrix: Any) -> None:
        if not isinstance(matrix, tf.SparseTensor):
            coo = matrix.tocoo()
            indices = tf.stack([coo.row, coo.col], axis=1)
            matrix = tf.SparseTensor(
                tf.cast(indices, tf.int64), coo.data, coo.shape
            )
        # Row ids must be sorted for a ragged tensor, and SciPy does not promise
        # that.
        matrix = tf.sparse.reorder(matrix)
        rows, columns = tf.unstack(matrix.indices, axis=1)
        self._width = int(matrix.shape[1])
        self.size = int(matrix.shape[0])
        # Ragged, because gathering rows of a `SparseTensor` takes time
        # proportional to the whole matrix.
        self._columns, self._values = (
            tf.RaggedTensor.from_value_rowids(part, rows, nrows=self.size)
            for part in (columns, matrix.values)
        )

    def gather(self, numbers: tf.Tensor) -> tf.SparseTensor:
        """Returns the rows with these indices, as a sparse matrix."""
        columns = tf.gather(self._columns, numbers)
        values = tf.gather(self._values, numbers)
        indices = tf.stack([columns.value_rowids(), columns.values], axis=1)
        count = tf.shape(numbers, tf.int64)[0]
        made = tf.SparseTensor(indices, values.values, [count, self._width])
        return _with_shape(made, [None, self._width])

    def matrix(self) -> tf.SparseTensor:
        """Returns all rows, as a sparse matrix."""
        return self.gather(tf.range(self.size, dtype=tf.int64))


def is_sparse(part: Any) -> bool:
    """Returns whether an array is a sparse matrix of TensorFlow or SciPy."""
    return isinstance(part, tf.SparseTensor) or hasattr(part, "tocoo")


def _with_shape(part: tf.SparseTensor, shape: Any) -> tf.SparseTensor:
    part.set_shape(shape)
    return part
