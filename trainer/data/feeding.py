"""The input of a strategy plugin's replicas, with a fixed shape or not."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.data.batches import Batches, Cut, NextRange, count_rows, endless
from trainer.errors import UserError
from trainer.runtime.graph import plain


class Padded(NamedTuple):
    """A replica batch with padding.

    Attributes:
        batch: the data; every part has the shape `[size, ...]`.
        real: float32 of shape `[size]`, 1 for an example, 0 for padding.
    """

    batch: Any
    real: tf.Tensor


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
        fit: gives all replica batches the same number of rows, such as
            `padded` or `exact`; `None` leaves them unchanged.

    Returns:
        A function of the range of replicas. With `next_range`, it reads the
        batches that this names, counted from `start`; see `NextRange`. With
        `is_kept=True` it returns a dataset that must live for as long as its
        iterators, as `iter(dataset)` sees to; arrays are then read where they
        are, instead of copied for each iterator.

    Raises:
        UserError: replica batches need a fixed shape, and the batches cannot
            be divided evenly.
    """
    size = 0
    if fit is not None:
        size = _even_size(batches, Cut(micro, num_replicas))

    def make_dataset(
        replicas: range,
        *,
        next_range: NextRange | None = None,
        is_kept: bool = False,
    ) -> tf.data.Dataset:
        cut = Cut(micro, num_replicas, replicas)
        if next_range is None:
            dataset = batches.read(start=start, cut=cut)
        else:
            dataset = batches.read_named(next_range, start=start, cut=cut)
        if fit is not None:
            dataset = fit(dataset, size)
        return dataset if is_kept else _outlived(dataset)

    return make_dataset


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


def _even_size(batches: Batches, cut: Cut) -> int:
    """Returns the size of every replica batch of a full batch."""
    given = batches.batch_size
    size = None if given is None else cut.even_size(given)
    # Uneven ones would need padding in every batch, and one shape could not
    # be declared.
    if size is None:
        raise UserError(
            f"The data's batch_size = {given} must be a multiple of "
            f"{cut.micro * cut.num_replicas}: this strategy needs fixed "
            "shapes, and divides a batch into that many parts. Set its "
            "batch_size."
        )
    return size


def padded(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Pads replica batches to `size` rows, and marks which are examples.

    Padding repeats the last example, so that the model never gets a value that
    is not in the data. Where there is none, it is zeros, as for any replica
    without an example.

    Args:
        dataset: replica batches of at most `size` rows, possibly none.
        size: rows in a full one.

    Returns:
        An endless dataset of `Padded`.

    Raises:
        UserError: a part of the batches has no fixed shape.
    """
    specs = _fixed_specs(dataset, size)

    def fill(*given: Any) -> Padded:
        batch = given[0] if len(given) == 1 else given
        count = tf.cast(count_rows(batch), tf.int32)
        enough = tf.debugging.assert_less_equal(
            count, size, f"A batch holds more than {size} examples per replica."
        )
        with tf.control_dependencies([enough]):
            rows = tf.minimum(tf.range(size), tf.maximum(count - 1, 0))
        # A spare row, for where there is no other.
        pool = tf.nest.map_structure(
            lambda part, spec: tf.concat(
                [part, tf.zeros([1, *spec.shape[1:]], spec.dtype)], 0
            ),
            batch,
            specs,
        )
        real = tf.cast(tf.range(size) < count, tf.float32)
        return Padded(_with_shape(_gather(pool, rows), specs), real)

    return _buffered(dataset.map(plain(fill)))


def exact(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Declares that every replica batch has `size` rows; others are an error.

    Args:
        dataset: replica batches of `size` rows.
        size: how many.

    Returns:
        The same in an endless dataset, with a static shape.

    Raises:
        UserError: a part of the batches has no fixed shape.
    """
    specs = _fixed_specs(dataset, size)
    # Endless already, as `Batches.read` promises.
    if specs == dataset.element_spec:
        return dataset

    def declare(*batch: Any) -> Any:
        return _with_shape(batch[0] if len(batch) == 1 else batch, specs)

    return _buffered(dataset.map(plain(declare)))


def _gather(batch: Any, rows: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda part: tf.gather(part, rows), batch)


def _with_shape(batch: Any, specs: Any) -> Any:
    return tf.nest.map_structure(
        lambda part, spec: tf.ensure_shape(part, spec.shape), batch, specs
    )


def _buffered(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return endless(dataset).prefetch(tf.data.AUTOTUNE)


def _fixed_specs(dataset: tf.data.Dataset, size: int) -> Any:
    """Returns the dataset's specs with `size` rows in each part."""
    for path, spec in keras.tree.flatten_with_path(dataset.element_spec):
        where = " / ".join(map(str, path))
        part = f"part {where} of a batch" if where else "a batch"
        if not isinstance(spec, tf.TensorSpec):
            raise UserError(
                f"In the data, {part} is a {spec.value_type.__name__}. This "
                "strategy compiles its step for fixed shapes. Make it dense."
            )
        if not spec.shape.rank or not spec.shape[1:].is_fully_defined():
            raise UserError(
                f"In the data, {part} has the shape {spec.shape}. This strategy"
                " compiles its step for fixed shapes. Pad or resize each "
                "example to one shape."
            )
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec([size, *spec.shape[1:]], spec.dtype),
        dataset.element_spec,
    )
