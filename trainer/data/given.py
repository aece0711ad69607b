"""Data that is given as it is, and not by a function of the split."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer.data.arrays import (
    as_arrays,
    check_rows,
    is_text,
    weights_of_all,
)
from trainer.data.batches import Batches
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import ArrayExamples, Examples
from trainer.data.indexed_batches import IndexedBatches
from trainer.data.py_dataset import check_py_dataset, from_py_dataset
from trainer.errors import UserError, nearest

# What others call the eval split.
_SYNONYMS = ("val", "valid", "validation", "dev")
# A dict with one of these is one of splits, and not one of inputs.
_SPLITS = frozenset({"train", "eval", "test"})


class GivenData:
    """Data by split, as it was given.

    Args:
        by_split: split to what `as_examples` takes.
        shuffle: whether training shuffles arrays in each epoch.
        eval_batch_size: of the other splits, where they are arrays; by
            default that of training.

    Attributes:
        batch_size: examples in a batch of the training data, where a dataset
            determines it; else `None`.
    """

    def __init__(
        self,
        by_split: Mapping[str, Any],
        *,
        shuffle: bool = True,
        eval_batch_size: int | None = None,
    ) -> None:
        self._eval_batch_size = eval_batch_size
        self._by_split = {
            split: as_examples(data, split=split, shuffle=shuffle)
            for split, data in by_split.items()
        }
        self._shuffle = shuffle
        train = self._by_split.get("train")
        if isinstance(train, keras.utils.PyDataset):
            train = from_py_dataset(train)
        self.batch_size = (
            size_of_batches(train)
            if isinstance(train, tf.data.Dataset)
            else getattr(train, "batch_size", None)
        )

    @classmethod
    def of(cls, data: Any) -> "GivenData | None":
        """The data of `Trainer(data=...)`; `None` if it is a function of it.

        Raises:
            UserError: it is nothing that data can be.
        """
        if data is None or (callable(data) and not hasattr(data, "__array__")):
            return None
        if not is_by_split(data):
            return cls({"train": data})
        names = [name for name in data if name in _SYNONYMS]
        if names:
            raise UserError(
                f"data has a split {names[0]!r}: call it 'eval'. Splits: "
                "'train', 'eval', and any other for evaluate(split=...)."
            )
        return cls(data)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that were given."""
        return tuple(self._by_split)

    def __contains__(self, split: str) -> bool:
        return split in self._by_split

    def check_batch_size(self, split: str, *, name: str) -> None:
        """Checks that a split takes a batch size.

        Raises:
            UserError: it yields batches itself.
        """
        data = self._by_split.get(split)
        if isinstance(data, tf.data.Dataset | Batches | keras.utils.PyDataset):
            raise UserError(
                f"{name} is for arrays, and the data is a "
                f"{type(data).__name__}, which yields batches itself. Leave "
                "it out."
            )

    def batches(
        self, split: str, *, batch_size: int, seed: int, drop_remainder: bool
    ) -> Batches:
        """The batches of a split; see `trainer.data.as_batches`.

        Raises:
            UserError: there is no such split, or it cannot be used.
        """
        if split not in self._by_split:
            raise UserError(self._missing(split))
        data = self._by_split[split]
        drop_remainder = split == "train" and drop_remainder
        if isinstance(data, Batches):
            return data
        if isinstance(data, tf.data.Dataset | keras.utils.PyDataset):
            size = batch_size if split == "train" else None

            def make() -> tf.data.Dataset:
                if isinstance(data, tf.data.Dataset):
                    return data
                shuffled = split == "train" and self._shuffle
                return from_py_dataset(data, seed=seed if shuffled else None)

            return DatasetBatches(
                make,
                batch_size=size,
                name=f"the {split} dataset",
                drop_remainder=drop_remainder,
            )
        if split != "train":
            batch_size = self._eval_batch_size or batch_size
        return IndexedBatches(
            data,
            batch_size=batch_size,
            seed=seed,
            shuffle=split == "train" and data.shuffle and self._shuffle,
            drop_remainder=drop_remainder,
        )

    def _missing(self, split: str) -> str:
        if split == "eval":
            return (
                "There is no eval data: give it with the training data, as "
                "Trainer(data={'train': (x, y), 'eval': (x_val, y_val)}), or "
                "to the call: evaluate(x, y), fit(validation_data=(x, y))."
            )
        if split == "train":
            return "There is no train data: pass Trainer(data=(x, y))."
        return f"data has no split {split!r}. {nearest(split, self._by_split)}"


def is_by_split(data: Any) -> bool:
    """Whether data is a dict of splits; other dicts are inputs by name."""
    return isinstance(data, Mapping) and bool(data.keys() & _SPLITS)


def as_examples(data: Any, *, split: str, shuffle: bool = True) -> Any:
    """Makes what batches are read from, of data that is given as it is.

    Args:
        data: a `tf.data.Dataset` of batches, `Batches`, `Examples`, a
            `PyDataset`, or arrays: `x`, `(x, y)` or `(x, y, sample_weight)`.
        split: for messages.
        shuffle: whether training shuffles arrays.

    Returns:
        A dataset, a `PyDataset`, `Batches`, or `Examples`.

    Raises:
        UserError: it is none of these, or arrays do not fit together.
    """
    if isinstance(data, tf.data.Dataset | Batches | Examples):
        return data
    if isinstance(data, keras.utils.PyDataset):
        check_py_dataset(data)
        return data
    parts = data if isinstance(data, tuple | list) else (data,)
    if len(parts) > 3:
        raise UserError(
            f"The {split} data is a {type(data).__name__} of {len(parts)}. "
            "Give (x, y) or (x, y, sample_weight); several inputs are a dict, "
            "or a list, in place of x."
        )
    names = ("x", "y", "sample_weight")
    is_plain = split in ("train", "predict")
    suffix = "" if is_plain else f" of the {split} data"
    named = {
        f"{name}{suffix}": as_arrays(part, f"{name}{suffix}")
        for name, part in zip(names, parts, strict=False)
    }
    if not any(leaf is not None for leaf in tf.nest.flatten(named)):
        raise UserError(f"The {split} data is empty. Give (x, y).")
    check_rows(named)
    x, y, weight = (*named.values(), None, None)[:3]
    leaves = [leaf for leaf in tf.nest.flatten(named) if leaf is not None]
    weight = weights_of_all(weight, int(leaves[0].shape[0]))
    for leaf in tf.nest.flatten(y):
        if is_text(leaf):
            raise UserError(
                f"y{suffix} holds text, such as {str(leaf[0])!r}. Number the "
                "classes: classes, y = numpy.unique(y, return_inverse=True)."
            )
    return ArrayExamples(
        keras.utils.pack_x_y_sample_weight(x, y, weight), shuffle=shuffle
    )


def size_of_batches(dataset: tf.data.Dataset) -> int | None:
    """Examples in the first batch; `None` for a dataset that has none."""
    leaves = tf.nest.flatten(dataset.element_spec)
    if any(leaf.shape.rank == 0 for leaf in leaves):
        raise UserError(
            "The dataset yields single examples. Batch it with "
            "dataset.batch(batch_size)."
        )
    static = leaves[0].shape[0] if leaves[0].shape.rank else None
    if static is not None:
        return int(static)
    for batch in dataset.take(1):
        first = tf.nest.flatten(batch)[0]
        if isinstance(first, tf.SparseTensor):
            return int(first.dense_shape[0])
        return int(tf.shape(first)[0])
    return None
