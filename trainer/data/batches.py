"""The contract of a data source: global batches, addressed by step."""

import abc
import enum
from collections.abc import Callable

import tensorflow as tf


class Resume(enum.StrEnum):
    """How a source gets to step n; a run says which of these it uses."""

    SEEK = "seek"  # In O(1): examples have random access.
    SKIP = "skip"  # By reading and dropping n batches of the same sequence.
    RESTORE = "restore"  # From a position of its own in the checkpoint.


class Batches(abc.ABC):
    """The global batches of one split, in an order that no reader changes.

    A global batch is cut into `micro` micro-batches and each of those into
    one piece per replica, contiguous and as even as possible, so that every
    strategy sees the same examples in the same micro-batch.

    Attributes:
        batch_size: examples in a full global batch; `None` if unknown.
        steps_per_epoch: batches in one pass; `None` if endless.
        resume: how `pieces` reaches its first step.
    """

    batch_size: int | None
    steps_per_epoch: int | None
    resume: Resume

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
            every: take only each so-manieth batch, beginning with `start`.
            replicas: which of the replicas are fed by this input pipeline.
            num_replicas: how many replicas share a global batch.
            micro: micro-batches per global batch.

        Returns:
            An endless dataset of pieces in the order (step, micro-batch,
            replica). A short global batch still gives every piece; some
            then hold fewer examples, or none.
        """


def feeder(
    batches: Batches, *, start: int, num_replicas: int, micro: int
) -> Callable[..., tf.data.Dataset]:
    """What a strategy plugin needs to feed its replicas from a step on.

    Returns:
        A function of the replicas' range, and optionally of how many batches
        to pass over first (`offset`) and to take one of (`every`).
    """

    def make_pieces(
        replicas: range, *, offset: int = 0, every: int = 1
    ) -> tf.data.Dataset:
        return batches.pieces(
            start=start + offset,
            every=every,
            replicas=replicas,
            num_replicas=num_replicas,
            micro=micro,
        )

    return make_pieces


def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a dataset as infinite, so that no replica asks for its end.

    Otherwise tf.distribute checks on each step whether every replica still
    has data: a branch on one host, a collective across several.
    """
    return dataset.apply(
        tf.data.experimental.assert_cardinality(
            tf.data.experimental.INFINITE_CARDINALITY
        )
    )
