"""`Batches`: the interface of a data source, addressed by step."""

import abc
import enum
from collections.abc import Callable

import tensorflow as tf

from trainer.data.sharding import even_piece
from trainer.errors import UserError


class Resume(enum.StrEnum):
    """How a source reaches step n; a run says which of these it uses."""

    SEEK = "seek"  # In O(1): examples have random access.
    SKIP = "skip"  # By reading and dropping n batches of the same sequence.


class Batches(abc.ABC):
    """The global batches of one split, in a fixed order.

    A global batch is cut into `micro` micro-batches and each of those into
    one piece per replica, contiguous and as even as possible, so that every
    strategy sees the same examples in the same micro-batch.

    Attributes:
        batch_size: examples in a full global batch; `None` if unknown.
        steps_per_epoch: batches in one pass; `None` if endless.
        resume: how `pieces` reaches its first step.
        last_size: examples in an epoch's last batch; `None` if unknown.
    """

    last_size: int | None = None
    batch_size: int | None
    steps_per_epoch: int | None
    resume: Resume

    def learn_length(self, at_most: int) -> None:  # noqa: B027 - most know it
        """Finds out how long an epoch is, if that takes reading it.

        Args:
            at_most: an epoch that is longer may count as endless.
        """

    @abc.abstractmethod
    def pieces(
        self,
        *,
        start: int,
        every: int = 1,
        replicas: range,
        num_replicas: int,
        micro: int,
    ) -> tf.data.Dataset:
        """The pieces that the replicas in `replicas` get, from a step on.

        Args:
            start: the number of global batches that came before.
            every: take every `every`-th batch, beginning with `start`.
            replicas: which of the replicas are fed by this input pipeline.
            num_replicas: how many replicas share a global batch.
            micro: micro-batches per global batch.

        Returns:
            An endless dataset of pieces in the order (step, micro-batch,
            replica). A short global batch still yields every piece; some
            then hold fewer examples, or none.
        """


def feeder(
    batches: Batches,
    *,
    start: int,
    num_replicas: int,
    micro: int,
    fit: Callable[[tf.data.Dataset, int], tf.data.Dataset] | None = None,
) -> Callable[..., tf.data.Dataset]:
    """What a strategy plugin needs to feed its replicas from a step on.

    Args:
        batches: the global batches.
        start: the number of global batches that came before.
        num_replicas: how many replicas share a global batch.
        micro: micro-batches per global batch.
        fit: gives all pieces one shape, see `trainer.data.static_shapes`;
            `None` leaves them as they are.

    Returns:
        A function of the replicas' range, and optionally of the number of
        batches to skip first (`offset`) and of a stride (`every`).

    Raises:
        UserError: pieces must have one shape, and batches cannot be cut that
            way.
    """
    # Found now, so that data that cannot be cut is refused before tracing.
    size = (
        0
        if fit is None
        else _one_size(batches, micro=micro, num_replicas=num_replicas)
    )

    def make_pieces(
        replicas: range, *, offset: int = 0, every: int = 1
    ) -> tf.data.Dataset:
        pieces = batches.pieces(
            start=start + offset,
            every=every,
            replicas=replicas,
            num_replicas=num_replicas,
            micro=micro,
        )
        return pieces if fit is None else fit(pieces, size)

    return make_pieces


def _one_size(batches: Batches, *, micro: int, num_replicas: int) -> int:
    """The size of every piece of a full batch."""
    if batches.batch_size is None:
        raise UserError(
            "The data does not say how many examples a batch holds, which "
            "this strategy's fixed shapes need: set its batch_size."
        )
    size = even_piece(
        batches.batch_size, micro=micro, num_replicas=num_replicas
    )
    if size is None:
        raise UserError(
            f"The data's batch_size = {batches.batch_size} must be a multiple "
            f"of {micro * num_replicas}, the pieces that this strategy cuts "
            "a batch into."
        )
    return size


def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a dataset as infinite, so that no replica checks for its end.

    Otherwise tf.distribute checks on each step whether every replica still
    has data: a branch on one host, a collective across several.
    """
    return dataset.apply(
        tf.data.experimental.assert_cardinality(
            tf.data.experimental.INFINITE_CARDINALITY
        )
    )
