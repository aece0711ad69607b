"""Cuts a global batch into micro-batches and replica pieces."""

from typing import Any


def piece_bounds(
    size: Any,
    piece: Any,
    *,
    micro: int,
    replicas: range,
    num_replicas: int,
) -> tuple[Any, Any]:
    """Where pieces begin and end within a global batch.

    Micro-batches share the global batch, and replicas share a micro-batch, in
    order, with sizes that differ by at most one. So a micro-batch of a short
    batch is only empty if there are fewer examples than micro-batches.

    Args:
        size: integer scalar, the examples in this global batch.
        piece: integers of any shape, the pieces' numbers in the order
            (micro-batch, replica), each in `[0, micro * len(replicas))`.
            Like `size`, an array or a tensor.
        micro: micro-batches per global batch.
        replicas: the replicas to cut for.
        num_replicas: how many replicas share a micro-batch.

    Returns:
        Two arrays or tensors of the shape of `piece`: begin and end.
    """
    # Plain operators: for NumPy when pieces are known, for tensors in a graph.
    index = piece // len(replicas)
    replica = replicas.start + piece % len(replicas)
    begin = _share(size, index, micro)
    count = _share(size, index + 1, micro) - begin
    return (
        begin + _share(count, replica, num_replicas),
        begin + _share(count, replica + 1, num_replicas),
    )


def _share(count: Any, index: Any, parts: int) -> Any:
    """Where part `index` begins when `count` examples are shared evenly.

    The quotient is rounded up, so that the first part is never the smaller
    one: of 3 examples on 8 replicas, the first, third and sixth get one.
    """
    return -(-count * index // parts)


def even_piece(batch_size: int, *, micro: int, num_replicas: int) -> int | None:
    """The size of every piece of a full batch, or `None` if they differ."""
    pieces = micro * num_replicas
    return batch_size // pieces if batch_size % pieces == 0 else None
