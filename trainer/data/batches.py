"""The contract of a data source: global batches, addressed by step."""

import abc
import bisect
import copy
import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import plain


class Resume(enum.StrEnum):
    """How a source reaches step n; recorded in `run.json`."""

    SEEK = "seek"  # In O(1): examples have random access.
    SKIP = "skip"  # In O(n): reads and drops n batches of the same sequence.


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a global batch is cut, and which parts an input pipeline reads.

    A global batch is divided into micro-batches, and each of these into one
    batch per replica: contiguous, in order, and as even as possible. So every
    strategy sees the same examples in the same micro-batch, and one is empty
    only if there are fewer examples than micro-batches.

    Attributes:
        micro: micro-batches per global batch.
        num_replicas: how many replicas share a micro-batch.
        replicas: those whose batches are read.
    """

    micro: int = 1
    num_replicas: int = 1
    replicas: range = range(1)

    @property
    def reads(self) -> int:
        """How many replica batches are read of a global batch."""
        return self.micro * len(self.replicas)

    @property
    def is_whole(self) -> bool:
        """Whether global batches stay as they are."""
        return self.micro * self.num_replicas == 1

    def even_size(self, batch_size: int) -> int | None:
        """Examples in each replica batch; `None` if some have more."""
        size, rest = divmod(batch_size, self.micro * self.num_replicas)
        return None if rest else size

    def bounds(self, size: Any, number: Any) -> tuple[Any, Any]:
        """Where replica batches begin and end within a global batch.

        Args:
            size: integer scalar, the number of examples in the global batch.
            number: integers of any shape, each in `[0, reads)`: replica
                batches in the order (micro-batch, replica). Like `size`, an
                array or a tensor.

        Returns:
            Two arrays or tensors of the shape of `number`: begin and end.
        """
        # Only operators, so that it works on arrays and in a graph alike.
        micro = number // len(self.replicas)
        replica = self.replicas.start + number % len(self.replicas)
        begin = _share(size, micro, self.micro)
        count = _share(size, micro + 1, self.micro) - begin
        return (
            begin + _share(count, replica, self.num_replicas),
            begin + _share(count, replica + 1, self.num_replicas),
        )


WHOLE = Cut()
# Called in an input pipeline: the first step of a range, and how many there
# are, as int64 scalars. Its argument means nothing.
NextRange = Callable[[Any], tuple[tf.Tensor, tf.Tensor]]


def _share(count: Any, index: Any, parts: int) -> Any:
    """Where part `index` begins if `count` examples are divided evenly.

    Rounds up, so that the first part is never a smaller one: of 3 examples on
    8 replicas, the first, third and sixth get one.
    """
    return -(-count * index // parts)


class Batches(abc.ABC):
    """The global batches of one split, in an order that all readers share.

    Attributes:
        batch_size: examples in a full global batch; `None` if unknown.
        steps_per_epoch: batches in one pass; `None` if endless.
        resume: how `read` reaches its first step.
        last_size: examples in an epoch's last batch; `None` if unknown.
        arrays: all examples, where they are held in memory as they are.
        can_skip: whether `read` leaves out the batches at `skipped`.
        skipped: positions of batches that no step takes; see `without`.
    """

    last_size: int | None = None
    arrays: Any = None
    can_skip: bool = False
    skipped: tuple[int, ...] = ()
    batch_size: int | None
    steps_per_epoch: int | None
    resume: Resume

    # Most sources know it, and have nothing to do.
    def learn_length(self, at_most: int | None = None) -> None:  # noqa: B027
        """Determines the length of an epoch, if this requires reading it.

        Args:
            at_most: a longer epoch may be treated as endless; `None` leaves
                that to the source.
        """

    @abc.abstractmethod
    def read(self, *, start: Any, cut: Cut = WHOLE) -> tf.data.Dataset:
        """Returns the batches of replicas, from a step on.

        Args:
            start: the step that takes the first batch, a number or a tensor.
            cut: how each batch is cut; by default not at all.

        Returns:
            An endless dataset of replica batches in the order (step,
            micro-batch, replica). A short global batch still yields all of
            them, but some hold fewer examples or none.
        """

    def read_named(
        self, next_range: NextRange, *, start: int, cut: Cut
    ) -> tf.data.Dataset:
        """Returns the batches of replicas whose steps are named.

        Args:
            next_range: waits for the next range of steps; see `NextRange`.
            start: the step from which these are counted.
            cut: see `read`, as what is returned.
        """

        def batches_of(first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
            dataset = self.read(start=start + first, cut=cut)
            return dataset.take(count * cut.reads)

        ranges = tf.data.Dataset.counter().map(plain(next_range))
        return endless(ranges.flat_map(plain(batches_of)))

    @functools.cached_property
    def element_spec(self) -> Any:
        """The structure of a whole global batch, of `tf.TypeSpec`s."""
        return self.read(start=0).element_spec

    def without(self, skipped: Collection[int]) -> "Batches":
        """The same batches, some of which no step takes.

        The batch of a step depends only on its number and on these positions,
        so that a restarted run continues exactly. Epochs are still counted in
        steps, and have as many batches as before.

        Args:
            skipped: positions of batches, from zero.

        Raises:
            UserError: this source cannot leave any out.
        """
        if not self.can_skip:
            raise UserError(
                f"{type(self).__name__} cannot skip batches on which training "
                "diverged: give arrays, Examples or a tf.data.Dataset, or set "
                "Guard.action = 'stop'."
            )
        left = copy.copy(self)
        left.skipped = tuple(sorted(set(skipped)))
        return left

    # Only where the rows of a whole batch are cut.
    def check_cut(self, first: Callable[[], Any]) -> None:  # noqa: B027
        """Checks that a batch may be cut into parts.

        Args:
            first: reads the first batch, whole.

        Raises:
            UserError: a part of it is not per example.
        """

    def why_not_stacked(self) -> str | None:
        """Why rows cannot be numbered; `None` if they can."""
        return "the data is read in its order"

    def rows_of(self, first: int, most: int) -> tf.Tensor:
        """The numbers of the rows of `arrays` that some steps take.

        Args:
            first: the first step.
            most: how many there are at most.

        Returns:
            Int64 of shape `[steps, batch]`, up to a batch of another size.
        """
        raise NotImplementedError


def position_of(step: int, skipped: Collection[int]) -> int:
    """The position of the batch that a step takes.

    That is the `step`-th batch that is not skipped.

    Args:
        step: the number of steps before it.
        skipped: positions of batches, from zero.
    """
    return step + bisect.bisect_right(first_steps_after(skipped), step)


def first_steps_after(skipped: Collection[int]) -> list[int]:
    """For each batch that is skipped, in order, the first step after it."""
    return [one - i for i, one in enumerate(sorted(set(skipped)))]


def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a dataset as infinite."""
    # Otherwise tf.distribute checks in each step whether every replica still
    # has data: a branch on one host, and a collective across several.
    return dataset.apply(
        tf.data.experimental.assert_cardinality(
            tf.data.experimental.INFINITE_CARDINALITY
        )
    )


def parts_of(batch: Any) -> dict[str, Any]:
    """The parts of a batch or of its specs, by names such as `"x['table']"`."""
    given = batch if isinstance(batch, tuple | list) else (batch,)
    tops = ("x", "y", "sample_weight") if len(given) <= 3 else ()
    return {
        name_of_part(top, path): part
        for path, part in keras.tree.flatten_with_path(tuple(given))
        for top, path in [
            (tops[path[0]], path[1:]) if tops else ("batch", path)
        ]
        if part is not None
    }


def name_of_part(top: str, path: Iterable[Any]) -> str:
    """Returns the name of a part, such as `"x['table']"`."""
    return "".join([top, *(f"[{key!r}]" for key in path)])


def counted_part(batch: Any) -> Any:
    """The part by which examples are counted: targets, if there are any.

    Inputs may hold what is not per example, such as a table of prototypes.

    Args:
        batch: tensors, or their specs.
    """
    found = parts_of(batch)
    targets = [part for name, part in found.items() if name[0] == "y"]
    parts = targets or [*found.values()]
    return next((one for one in parts if one.shape.rank != 0), parts[0])


def count_rows(batch: Any) -> tf.Tensor:
    """Returns the number of examples in a batch, as an int64 scalar."""
    return _rows_of(counted_part(batch))


def not_per_example(batch: Any) -> str | None:
    """The name of a part whose rows are not those of the targets, if any.

    Args:
        batch: tensors, or their specs: a fixed number is none of examples
            where that of the targets is not known.
    """
    rows = counted_part(batch).shape[:1]
    for name, part in parts_of(batch).items():
        known = part.shape[:1]
        if known.rank == 0 or known[0] not in (None, *rows):
            return name
    return None


def _rows_of(part: Any) -> tf.Tensor:
    # `tf.shape` takes neither.
    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    if isinstance(part, tf.RaggedTensor):
        return tf.cast(part.nrows(), tf.int64)
    if part.shape.rank == 0:
        raise UserError(
            "A batch holds single values instead of rows of examples."
        )
    return tf.shape(part, tf.int64)[0]


def take_rows(batch: Any, begin: Any, end: Any) -> Any:
    """Returns the examples of a batch from `begin` up to `end`.

    What is known not to be per example is not cut.
    """
    rows = counted_part(batch).shape[0]

    def cut(part: Any) -> Any:
        if part.shape.rank == 0 or part.shape[0] not in (None, rows):
            return part
        if not isinstance(part, tf.SparseTensor):
            return part[begin:end]
        first = tf.cast(begin, tf.int64)
        last = tf.minimum(tf.cast(end, tf.int64), part.dense_shape[0])
        start = tf.concat([[first], tf.zeros_like(part.dense_shape[1:])], 0)
        size = tf.concat([[last - first], part.dense_shape[1:]], 0)
        taken = tf.sparse.slice(part, start, size)
        # Slicing loses the static shape of the examples.
        taken.set_shape([None, *part.shape[1:]])
        return taken

    return tf.nest.map_structure(cut, batch)
