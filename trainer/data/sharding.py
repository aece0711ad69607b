"""Divides a global batch into micro-batches and pieces per replica."""

from typing import Any


def piece_bounds(
    size: Any,
    piece: Any,
    *,
    micro: int,
    replicas: range,
    num_replicas: int,
) -> tuple[Any, Any]:
    """Returns where pieces begin and end within a global batch.

    The global batch is divided into micro-batches, and each micro-batch into
    pieces, in order and evenly up to one example. So a micro-batch is empty
    only if there are fewer examples than micro-batches.

    Args:
        size: integer scalar, the number of examples in this global batch.
        piece: integers of any shape, the indices of pieces in the order
            (micro-batch, replica), each in `[0, micro * len(replicas))`.
            Like `size`, an array or a tensor.
        micro: micro-batches per global batch.
        replicas: the replicas that this input pipeline feeds.
        num_replicas: how many replicas share a micro-batch.

    Returns:
        Two arrays or tensors of the shape of `piece`: begin and end.
    """
    # Only operators, so that it works on arrays and in a graph alike.
    index = piece // len(replicas)
    replica = replicas.start + piece % len(replicas)
    begin = _share(size, index, micro)
    count = _share(size, index + 1, micro) - begin
    return (
        begin + _share(count, replica, num_replicas),
        begin + _share(count, replica + 1, num_replicas),
    )


def _share(count: Any, index: Any, parts: int) -> Any:
    """Returns where part `index` begins if `count` examples are divided evenly.

    Rounds up, so that the first part is never a smaller one: of 3 examples on
    8 replicas, the first, third and sixth get one.
    """
    return -(-count * index // parts)


def even_piece(batch_size: int, *, micro: int, num_replicas: int) -> int | None:
    """Returns the size of all pieces of a full batch; `None` if they differ."""
    pieces = micro * num_replicas
    return batch_size // pieces if batch_size % pieces == 0 else None
