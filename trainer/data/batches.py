"""The contract of a data source: global batches, addressed by step."""

import abc
import enum
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.data.sharding import even_piece
from trainer.data.stacks import (
    READY,
    stack_pieces,
    stack_size,
    why_not_stacked,
)
from trainer.errors import UserError


class Resume(enum.StrEnum):
    """How a source reaches step n; recorded in `run.json`."""

    SEEK = "seek"  # In O(1): examples have random access.
    SKIP = "skip"  # In O(n): reads and drops n batches of the same sequence.


class Batches(abc.ABC):
    """The global batches of one split, in an order that all readers share.

    A global batch is divided into `micro` micro-batches, and each of these into
    one piece per replica, contiguous and as even as possible. So every
    strategy sees the same examples in the same micro-batch.

    Attributes:
        batch_size: examples in a full global batch; `None` if unknown.
        steps_per_epoch: batches in one pass; `None` if endless.
        resume: how `pieces` reaches its first step.
        last_size: examples in an epoch's last batch; `None` if unknown.
        arrays: all examples, where they are held in memory as they are.
    """

    last_size: int | None = None
    arrays: Any = None
    batch_size: int | None
    steps_per_epoch: int | None
    resume: Resume

    def learn_length(self, at_most: int) -> None:  # noqa: B027 - most know it
        """Determines the length of an epoch, if this requires reading it.

        Args:
            at_most: a longer epoch may be treated as endless.
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
        """Returns the pieces for the replicas in `replicas`, from a step on.

        Args:
            start: the number of global batches to pass over.
            every: take only every n-th batch, beginning with `start`.
            replicas: the replicas that this input pipeline feeds.
            num_replicas: how many replicas share a global batch.
            micro: micro-batches per global batch.

        Returns:
            An endless dataset of pieces in the order (step, micro-batch,
            replica). A short global batch still yields all pieces, but some
            hold fewer examples or none.
        """

    def columns(self) -> Any:
        """All examples as tensors whose rows a step may gather by itself.

        Returns:
            Tensors of shape `[examples, ...]`, in the structure of a batch;
            `None` if batches have to be read by the input pipeline.
        """
        return None

    def why_not_stacked(self) -> str | None:
        """Why no stacks can be made; `None` if they can."""
        return why_not_stacked(self.element_spec, short=False)

    def stack_size(self) -> int:
        """How many batches a stack holds."""
        spec = self.element_spec
        rows = tf.nest.flatten(spec)[0].shape[0]
        return stack_size(spec, batch_size=rows, full_batches=None)

    @functools.cached_property
    def element_spec(self) -> Any:
        """The structure of a whole global batch, of `tf.TypeSpec`s."""
        return self.whole(0).element_spec

    def whole(self, start: int) -> tf.data.Dataset:
        """The global batches from a step on, in one piece each."""
        return self.pieces(
            start=start, replicas=range(1), num_replicas=1, micro=1
        )

    def stacks(self, *, start: int, stop: int | None = None) -> tf.data.Dataset:
        """The global batches in stacks, for a single replica.

        Where there are `columns`, stacks hold numbers of their rows.

        Args:
            start: the number of global batches to pass over.
            stop: how many batches are wanted after these; `None` means all.

        Returns:
            A dataset of `trainer.data.stacks.Stack`; endless without `stop`.
        """
        made = stack_pieces(
            self.whole(start), size=self.stack_size(), stop=stop
        )
        return made.prefetch(READY)


def feeder(
    batches: Batches,
    *,
    start: int,
    num_replicas: int,
    micro: int,
    fit: Callable[[tf.data.Dataset, int], tf.data.Dataset] | None = None,
) -> Callable[..., tf.data.Dataset]:
    """Returns what a strategy plugin needs to feed its replicas.

    Args:
        batches: the global batches.
        start: the number of global batches to pass over.
        num_replicas: how many replicas share a global batch.
        micro: micro-batches per global batch.
        fit: gives all pieces the same shape, see `trainer.data.static_shapes`;
            `None` leaves them unchanged.

    Returns:
        A function of the range of replicas. Optionally, it passes over
        `offset` batches first, and takes only every n-th one (`every`). With
        `is_kept=True` it returns a dataset that must live for as long as its
        iterators, as `iter(dataset)` sees to; arrays are then read where they
        are, instead of copied for each iterator.

    Raises:
        UserError: pieces need a fixed shape, and the batches cannot be divided
            evenly.
    """
    size = (
        0
        if fit is None
        else _one_size(batches, micro=micro, num_replicas=num_replicas)
    )

    def make_pieces(
        replicas: range,
        *,
        offset: int = 0,
        every: int = 1,
        is_kept: bool = False,
    ) -> tf.data.Dataset:
        pieces = batches.pieces(
            start=start + offset,
            every=every,
            replicas=replicas,
            num_replicas=num_replicas,
            micro=micro,
        )
        if fit is not None:
            pieces = fit(pieces, size)
        return pieces if is_kept else _outlived(pieces)

    return make_pieces


def _outlived(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Makes a dataset whose iterators may outlive it.

    An iterator owns the graph that tf.data rewrites for it. Where nothing is
    rewritten it only points to the dataset, and those of `tf.distribute`, which
    do not keep it, read freed memory.
    """
    optimization = dataset.options().experimental_optimization
    if optimization.apply_default_optimizations is not False:
        return dataset
    options = tf.data.Options()
    # Any rewriting will do; this one changes no dataset of a user.
    options.experimental_optimization.noop_elimination = True
    return dataset.with_options(options)


def _one_size(batches: Batches, *, micro: int, num_replicas: int) -> int:
    """Returns the size of every piece of a full batch."""
    if batches.batch_size is None:
        raise UserError(
            "The size of the data's batches is unknown, but this strategy "
            "needs fixed shapes. Set its batch_size."
        )
    # Uneven pieces would need padding in every batch, and one shape could not
    # be declared.
    size = even_piece(
        batches.batch_size, micro=micro, num_replicas=num_replicas
    )
    if size is None:
        raise UserError(
            f"The data's batch_size = {batches.batch_size} must be a multiple "
            f"of {micro * num_replicas}, because this strategy divides a "
            "batch into that many pieces."
        )
    return size


def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a dataset as infinite."""
    # Otherwise tf.distribute checks in each step whether every replica still
    # has data: a branch on one host, and a collective across several.
    return dataset.apply(
        tf.data.experimental.assert_cardinality(
            tf.data.experimental.INFINITE_CARDINALITY
        )
    )
