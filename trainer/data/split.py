"""Cuts a global batch into micro-batches and replica pieces."""

import tensorflow as tf


def piece_bounds(
    size: tf.Tensor, *, micro: int, replicas: range, num_replicas: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each piece begins and ends within a global batch.

    Micro-batches share the global batch, and replicas share a micro-batch,
    in order and evenly up to one example. So a short batch leaves a
    micro-batch empty only if it has fewer examples than micro-batches.

    Args:
        size: scalar int64, the examples in this global batch.
        micro: micro-batches per global batch.
        replicas: the replicas to cut for.
        num_replicas: how many replicas share a micro-batch.

    Returns:
        Two int64 tensors of shape `[micro * len(replicas)]`: begin and end.
    """
    size = tf.cast(size, tf.int64)
    index = tf.range(micro, dtype=tf.int64)
    begin = _share(size, index, micro)[:, tf.newaxis]
    count = _share(size, index + 1, micro)[:, tf.newaxis] - begin
    replica = tf.range(replicas.start, replicas.stop, dtype=tf.int64)
    edges = [
        tf.reshape(begin + _share(count, edge, num_replicas), [-1])
        for edge in (replica, replica + 1)
    ]
    return edges[0], edges[1]


def _share(count: tf.Tensor, index: tf.Tensor, parts: int) -> tf.Tensor:
    """Where part `index` begins when `count` examples are shared evenly.

    The quotient is rounded up, which puts the larger shares first: 3 examples
    on 8 replicas are one each for the first three.
    """
    return -(-count * index // parts)


def even_piece(batch_size: int, *, micro: int, num_replicas: int) -> int | None:
    """The size of every piece of a full batch, or `None` if they differ."""
    pieces = micro * num_replicas
    return batch_size // pieces if batch_size % pieces == 0 else None
