"""A `keras.utils.PyDataset` as batches that are read by their number."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError


def check_py_dataset(data: keras.utils.PyDataset) -> None:
    """Checks that a `PyDataset` has the same batches in each epoch.

    Raises:
        UserError: it changes from epoch to epoch, or does not say how long it
            is.
    """
    kind = type(data).__name__
    for event in ("on_epoch_begin", "on_epoch_end"):
        own = getattr(type(data), event, None)
        if own is not getattr(keras.utils.PyDataset, event, None):
            raise UserError(
                f"{kind}.{event} changes the data from epoch to epoch, so a "
                "resumed run could not find its place. Leave it out: shuffle="
                "True puts the batches into another order in each epoch."
            )
    if data.num_batches is None:
        raise UserError(
            f"{kind} does not say how many batches it has. Define __len__."
        )


def from_py_dataset(
    data: keras.utils.PyDataset, *, seed: int | None = None
) -> tf.data.Dataset:
    """Makes a dataset of the batches of a `PyDataset`.

    Args:
        data: has a length, and returns the same batch for a number each time.
        seed: puts the batches into another order in each pass, as Keras does;
            `None` keeps their own.
    """
    length = data.num_batches
    first = _as_batch(data[0])
    leaves = keras.tree.flatten(first)
    # The last one, too, as data may be sorted by length.
    others = [
        _as_batch(data[n]) for n in sorted({1, length - 1}) if 0 < n < length
    ]
    shapes = [
        _common_shape(parts)
        for parts in zip(leaves, *map(keras.tree.flatten, others), strict=True)
    ]

    def read(number: tf.Tensor) -> Any:
        def load(n: np.ndarray) -> list[np.ndarray]:
            batch = keras.tree.flatten(_as_batch(data[int(n)]))
            return [
                np.asarray(part, leaf.dtype)
                for part, leaf in zip(batch, leaves, strict=True)
            ]

        loaded = tf.numpy_function(load, [number], [x.dtype for x in leaves])
        for part, shape in zip(loaded, shapes, strict=True):
            part.set_shape(shape)
        return keras.tree.pack_sequence_as(first, loaded)

    numbers = tf.data.Dataset.range(length)
    if seed is not None:
        # Of all numbers, so that each order is as likely.
        numbers = numbers.shuffle(length, seed=seed)
    return numbers.map(
        read, num_parallel_calls=max(data.workers, 1), deterministic=True
    )


def _common_shape(parts: tuple[np.ndarray, ...]) -> list[int | None]:
    """The shape of a part in all batches: `None` where these differ.

    Raises:
        UserError: they differ in the number of axes.
    """
    if len({part.ndim for part in parts}) > 1:
        raise UserError(
            "The batches of a PyDataset have different numbers of axes: "
            f"shapes {', '.join(str(part.shape) for part in parts)}."
        )
    sizes = zip(*(part.shape[1:] for part in parts), strict=True)
    return [None, *(s[0] if len(set(s)) == 1 else None for s in sizes)]


def _as_batch(batch: Any) -> Any:
    """A batch of NumPy arrays, without the `None`s that Keras allows."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    packed = keras.utils.pack_x_y_sample_weight(x, y, weight)
    return keras.tree.map_structure(
        np.asarray, keras.tree.lists_to_tuples(packed)
    )
