"""Batches of Python: a `keras.utils.PyDataset`, and a generator."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.data.arrays import check_dtype, without_none
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import as_sparse, is_sparse
from trainer.errors import UserError, at_run_time

# To find the end of a generator.
_MOST_KEPT = 10_000
# The batches of a generator that are kept behind the newest one: input
# pipelines read ahead, and another one may begin before.
_KEPT = 100


def check_py_dataset(data: keras.utils.PyDataset) -> None:
    """Checks that a `PyDataset` has the same batches in each epoch.

    Raises:
        UserError: it changes from epoch to epoch.
    """
    kind = type(data).__name__
    for event in ("on_epoch_begin", "on_epoch_end"):
        own = getattr(type(data), event, None)
        if own is not getattr(keras.utils.PyDataset, event, None):
            raise UserError(
                f"{kind}.{event} changes the data from epoch to epoch, so a "
                "resumed run could not find its place. Leave it out: "
                "shuffle=True reorders the batches in each epoch."
            )


def from_py_dataset(
    data: keras.utils.PyDataset, *, seed: int | None = None
) -> tf.data.Dataset:
    """Makes a dataset of the batches of a `PyDataset`.

    Args:
        data: returns the same batch for a number each time; one that does not
            say how long it is has no end.
        seed: puts the batches into another order in each pass, as Keras does;
            `None` keeps their own.
    """
    length = data.num_batches
    # The last one, too, as data may be sorted by length.
    last = 1 if length is None else length - 1
    tried = sorted({0, min(1, last), last})

    spec = _spec_of([_as_batch(data[number]) for number in tried])
    leaves = tf.nest.flatten(spec, expand_composites=True)

    def load(number: np.ndarray) -> list[np.ndarray]:
        batch = _as_batch(data[int(number)])
        parts = tf.nest.flatten(batch, expand_composites=True)
        return [
            np.asarray(part, leaf.dtype.as_numpy_dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]

    def read(number: tf.Tensor) -> Any:
        loaded = tf.numpy_function(load, [number], [x.dtype for x in leaves])
        for part, leaf in zip(loaded, leaves, strict=True):
            part.set_shape(leaf.shape)
        return tf.nest.pack_sequence_as(spec, loaded, expand_composites=True)

    numbers = tf.data.Dataset.counter()
    if length is not None:
        numbers = tf.data.Dataset.range(length)
        if seed is not None:
            # Of all numbers, so that each order is as likely.
            numbers = numbers.shuffle(length, seed=seed)
    return numbers.map(
        read, num_parallel_calls=max(data.workers, 1), deterministic=True
    )


class GeneratedBatches(DatasetBatches):
    """The batches of a Python generator, which is read once.

    Those that a run may still ask for are kept, and all of them if the length
    of an epoch has to be known: that of the generator.

    Args:
        generator: yields batches.
        name: of the data, for messages.

    Raises:
        UserError: it yields none.
    """

    def __init__(self, generator: Iterator[Any], name: str) -> None:
        logging.warning(
            "%s is a generator: a resumed run starts it again, and continues "
            "exactly only if it yields the same batches.",
            name,
        )
        self._generator, self._given_name = generator, name
        self._lock = threading.Lock()
        self._batches: list[Any] = []
        self._kept = _KEPT
        tried = list(itertools.islice(self._from_start(), 2))
        if not tried:
            raise UserError(f"{name} yields no batches.")
        spec = _spec_of(tried)
        super().__init__(
            lambda: tf.data.Dataset.from_generator(
                self._from_start, output_signature=spec
            ),
            batch_size=None,
            name=name,
        )

    def learn_length(self, at_most: int | None = None) -> None:
        """See `Batches.learn_length`: what is counted is kept."""
        most = at_most or _MOST_KEPT
        self._kept = max(self._kept, most)
        super().learn_length(most)

    def _from_start(self) -> Iterator[Any]:
        """Yields all batches, those that have been read among them."""
        for number in itertools.count():
            with self._lock:
                if number == len(self._batches):
                    try:
                        self._batches.append(_as_batch(next(self._generator)))
                    except StopIteration:
                        if number > self._kept + _KEPT:
                            # Another pass would lack some.
                            self._batches[0] = None
                        return
                    # The first ones are read again, for each trial and
                    # evaluation.
                    if (old := number - _KEPT) >= self._kept:
                        self._batches[old] = None
                batch = self._batches[number]
            if batch is None:
                raise RuntimeError(
                    at_run_time(
                        f"{self._given_name} has ended, or cannot go back to "
                        f"its batch {number}. Give a dataset, arrays or a "
                        "PyDataset."
                    )
                )
            yield batch


def _spec_of(tried: list[Any]) -> Any:
    """The structure of `tf.TensorSpec`s that some batches have in common."""

    def common(*parts: Any) -> tf.TypeSpec:
        kind = tf.SparseTensorSpec if is_sparse(parts[0]) else tf.TensorSpec
        return kind(_common_shape(parts), parts[0].dtype)

    return keras.tree.map_structure(common, *tried)


def _common_shape(parts: tuple[Any, ...]) -> list[int | None]:
    """The shape of a part in all batches: `None` where these differ.

    Raises:
        UserError: they differ in the number of axes.
    """
    if len({len(part.shape) for part in parts}) > 1:
        raise UserError(
            "The batches of a PyDataset have different numbers of axes: "
            f"shapes {', '.join(str(part.shape) for part in parts)}."
        )
    if not len(parts[0].shape):
        return []
    sizes = zip(*(part.shape[1:] for part in parts), strict=True)
    return [None, *(s[0] if len(set(s)) == 1 else None for s in sizes)]


def _as_batch(batch: Any) -> Any:
    """A batch of arrays, without the `None`s that Keras allows."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    packed = keras.utils.pack_x_y_sample_weight(without_none(x), y, weight)
    return keras.tree.map_structure(_array, keras.tree.lists_to_tuples(packed))


def _array(part: Any) -> Any:
    if is_sparse(part):
        return as_sparse(part)
    array = np.asarray(part)
    if array.dtype == object and not isinstance(
        next(array.flat, None), str | bytes
    ):
        raise UserError(
            f"A batch holds a {type(part).__name__}, which no tensor can hold. "
            "Give arrays of numbers, one row for each example."
        )
    check_dtype(array, "A batch")
    return array
