"""Cuts a global batch into micro-batches and replica pieces."""

import tensorflow as tf


def piece_bounds(
    size: tf.Tensor,
    *,
    micro_size: int | None,
    micro: int,
    replicas: range,
    num_replicas: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each piece begins and ends within a global batch.

    Micro-batches have the size they have in a full batch, so a short batch
    leaves the last of them short or empty. Within a micro-batch the replicas
    get equal shares, up to one example.

    Args:
        size: scalar int64, the examples in this global batch.
        micro_size: examples in a full micro-batch; `None` shares `size`
            evenly.
        micro: micro-batches per global batch.
        replicas: the replicas to cut for.
        num_replicas: how many replicas share a micro-batch.

    Returns:
        Two int64 tensors of shape `[micro * len(replicas)]`: begin and end.
    """
    size = tf.cast(size, tf.int64)
    index = tf.range(micro, dtype=tf.int64)
    if micro_size is None:
        edges = [size * index // micro, size * (index + 1) // micro]
    else:
        edges = [
            tf.minimum(index * micro_size, size),
            tf.minimum((index + 1) * micro_size, size),
        ]
    begin, end = (edge[:, tf.newaxis] for edge in edges)
    replica = tf.range(replicas.start, replicas.stop, dtype=tf.int64)
    count = end - begin
    # Ceiling division puts the larger shares first: 3 examples on 8 replicas
    # are one each for the first three.
    share = [
        begin + -(-count * edge // num_replicas)
        for edge in (replica, replica + 1)
    ]
    return tf.reshape(share[0], [-1]), tf.reshape(share[1], [-1])


def even_piece(batch_size: int, *, micro: int, num_replicas: int) -> int | None:
    """The size of every piece of a full batch, or `None` if they differ."""
    pieces = micro * num_replicas
    return batch_size // pieces if batch_size % pieces == 0 else None
