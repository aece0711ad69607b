"""`ReplicaBatch`: a replica's part of a batch, and how many examples it has.

A short batch leaves some replicas (or micro-batches) with fewer examples than
others, or with none. Not every operation takes a batch of none: TensorFlow's
convolutions, for one, return the wrong shape. So such a part gets a stand-in,
one example of zeros, which contributes nothing to gradients, losses, logs and
variables. And a mean of means is the mean of all examples only where each is
weighed by its number of examples.

Where shapes must not change, a short evaluation batch is filled up. Its
padding weighs nothing, and is no example.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.data.batches import count_rows, counted_part
from trainer.data.feeding import Padded
from trainer.step.gradients import reduce_sum


class WeightedBatch(tuple):
    """A batch `(x, y, sample_weight)` whose padding weighs nothing.

    Attributes:
        real: float32 of shape `[batch]`, 1 for an example, 0 for padding.
        has_weights: whether the data has sample weights of its own.
    """

    real: tf.Tensor
    has_weights: bool


class ReplicaBatch:
    """One replica's part of a (micro-)batch.

    Args:
        batch: what the replica was given.
        shares: how many such parts make a global batch; a single one is
            never empty.
        most_rows: says how many examples it has at most, where shapes must
            not change from step to step; `None` where they may.

    Attributes:
        batch: the same; where it has no example, with a stand-in.
        examples: float32 scalar, how many examples there are.
        rows: the same with padding or a stand-in: a number, or a scalar tensor
            where it is not known while tracing.
        real: which rows are examples; `None` where all of them are.
        is_even: each replica's part has as many.
        may_be_empty: whether there may be none.
        may_stand_in: whether there may be a stand-in.
        settled: the results of the step that count nothing where there is
            none; all others have to be told.
    """

    def __init__(
        self,
        batch: Any,
        *,
        shares: int,
        most_rows: Callable[[], int] | None = None,
    ) -> None:
        self.batch, self.shares, self.most_rows = batch, shares, most_rows
        self.settled: set[str] = set()
        # Reduced on first use: most steps need no reduction for it.
        self._all_examples: tf.Tensor | None = None
        self.real: tf.Tensor | None = getattr(batch, "real", None)
        self.examples = (
            tf.cast(count_rows(batch), tf.float32)
            if self.real is None
            else tf.reduce_sum(self.real)
        )
        known = counted_part(batch).shape[0]
        # A static shape without padding: as many examples on each replica.
        is_static = known is not None and not tf.executing_eagerly()
        self.is_even = self.real is None and is_static
        self.may_be_empty = shares > 1 and not (self.is_even and known)
        self.may_stand_in = self.may_be_empty and not known
        if self.may_stand_in:
            self.batch = tf.nest.map_structure(self._with_stand_in, batch)
            known = None
        self.rows = count_rows(self.batch) if known is None else known

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole global batch, and without padding."""
        return self.shares == 1 and self.real is None

    @property
    def is_empty(self) -> tf.Tensor:
        """Whether there is no example: a boolean scalar."""
        return tf.equal(self.examples, 0.0)

    def or_zeros(self, structure: Any) -> Any:
        """The same numbers, or zeros where there is no example.

        Args:
            structure: tensors, `tf.IndexedSlices` and `None`s.
        """
        if not self.may_be_empty:
            return structure
        return tf.nest.map_structure(self._or_zero, structure)

    def _with_stand_in(self, part: Any) -> Any:
        """A part of the batch, with a row of zeros if there is no example."""
        is_sparse = isinstance(part, tf.SparseTensor)
        is_known = not part.shape.rank or part.shape[0]
        if is_known or not (is_sparse or tf.is_tensor(part)):
            return part
        shape = part.dense_shape if is_sparse else tf.shape(part)
        missing = tf.cast(self.is_empty & tf.equal(shape[0], 0), shape.dtype)
        if is_sparse:
            shape = tf.concat([shape[:1] + missing, shape[1:]], 0)
            filled = tf.SparseTensor(part.indices, part.values, shape)
        else:
            filled = tf.pad(
                part, [[0, missing], *[[0, 0]] * (part.shape.rank - 1)]
            )
        filled.set_shape([None, *part.shape[1:]])
        return filled

    def _or_zero(self, part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, tf.IndexedSlices):
            values = self._or_zero(part.values)
            return tf.IndexedSlices(values, part.indices, part.dense_shape)
        # tf.where, not a product: zero times NaN is NaN.
        return tf.where(self.is_empty, tf.zeros_like(part), part)

    @property
    def all_examples(self) -> tf.Tensor:
        """The examples of all replicas: a float32 scalar, reduced once."""
        # Not functools.cached_property: before Python 3.12 all replicas'
        # threads share its lock, and would deadlock in the reduction.
        if self._all_examples is None:
            self._all_examples = reduce_sum(self.examples)
        return self._all_examples

    @property
    def weight(self) -> tf.Tensor:
        """This part's weight in a mean over replicas; 1 on average."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return tf.math.divide_no_nan(
            self.examples * replicas, self.all_examples
        )


def weighted(padded: Padded) -> WeightedBatch:
    """Gives a filled-up batch the form that `Trainer.eval_step` takes.

    Sample weights are multiplied by the mark of what is real; where there
    are none, the mark becomes the sample weight. A batch that is not `x`,
    `(x, y)` or `(x, y, sample_weight)` becomes `x` whole.
    """
    batch, real = padded
    if isinstance(batch, list | tuple) and len(batch) > 3:
        # keras.utils.unpack_x_y_sample_weight would refuse it.
        batch = (batch,)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    has_weights = weight is not None
    if weight is None:
        weight = real
    else:
        weight = tf.nest.map_structure(
            lambda part: tf.cast(part, tf.float32) * align(real, part), weight
        )
    # A tuple with attributes: research code unpacks it as usual, and the step
    # still knows which rows are padding.
    made = WeightedBatch((x, y, weight))
    made.real, made.has_weights = real, has_weights
    return made


def is_weighted(batch: Any) -> bool:
    """Whether the data of a batch has sample weights."""
    if isinstance(batch, WeightedBatch):
        return batch.has_weights
    if isinstance(batch, list | tuple) and len(batch) > 3:
        return False  # As in `weighted`.
    return keras.utils.unpack_x_y_sample_weight(batch)[2] is not None


def align(real: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Reshapes marks of shape `[batch]` to broadcast against `values`.

    Args:
        real: of shape `[batch]`.
        values: of shape `[batch, ...]`.
    """
    return tf.reshape(real, [-1] + [1] * (values.shape.rank - 1))
