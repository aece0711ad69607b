"""The data of a Trainer, and the batches that each split of it becomes.

    what is given, or returned by a function      is read as
    arrays, pandas frames, lists of numbers       `ArrayExamples`, in batches
    `Examples`                                    `IndexedBatches`: any step
    `tf.data.Dataset`, `keras.utils.PyDataset`    `DatasetBatches`: in order
    a Python generator                            `GeneratedBatches`: once
    `Batches`                                     it is

To accept another kind of data, make it `Examples` in `as_source`.
"""

import abc
import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer.data.arrays import (
    as_arrays,
    check_rows,
    weights_of_all,
    without_none,
)
from trainer.data.batches import Batches
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import ArrayExamples, Examples
from trainer.data.indexed_batches import IndexedBatches
from trainer.data.py_dataset import (
    GeneratedBatches,
    check_py_dataset,
    from_py_dataset,
)
from trainer.errors import UserError, nearest
from trainer.runtime.tensorflow_private import eager_context

# What `as_source` returns.
Source: TypeAlias = tf.data.Dataset | keras.utils.PyDataset | Batches | Examples
# What others call the eval split.
_SYNONYMS = ("val", "valid", "validation", "dev")
# A dict with one of these is one of splits, and not one of inputs.
_SPLITS = frozenset({"train", "eval", "test"})
# Those whose x needs no explanation in messages.
_PLAIN = ("train", "predict")


class Data(abc.ABC):
    """Data by split.

    Attributes:
        batch_size: examples in a batch of the training data, where a dataset
            determines it; otherwise `None`.
        splits: those that are known to be there.
        has_eval: whether there is an eval split, or may be.
        shuffle: whether training shuffles arrays in each epoch.
        eval_batch_size: of the other splits, where they are arrays; `None` is
            that of training.
        name: what messages call a dataset; by default after its split.
    """

    batch_size: int | None = None
    splits: tuple[str, ...] = ()
    has_eval: bool
    shuffle = True
    eval_batch_size: int | None = None
    name: str | None = None

    @abc.abstractmethod
    def source(
        self, split: str, batch_size: int, seed: int
    ) -> Callable[[], Source]:
        """How to make what a split is read from, again for each iterator.

        Raises:
            UserError: there is no such split.
        """

    def batches(
        self, split: str, *, batch_size: int, seed: int, drop_remainder: bool
    ) -> Batches:
        """The batches of a split.

        Args:
            split: `"train"`, `"eval"`, or another to evaluate.
            batch_size: examples in a global batch; 0 leaves it to a dataset.
            seed: the run's seed.
            drop_remainder: whether training needs batches of one size.
                Evaluation always uses all examples.

        Raises:
            UserError: there is no such split, or it cannot be used.
        """
        make = self.source(split, batch_size, seed)
        source = make()
        if isinstance(source, Batches):
            return source
        is_training = split == "train"
        is_shuffled = is_training and self.shuffle
        if isinstance(source, Examples):
            of_eval = self.eval_batch_size or batch_size
            return IndexedBatches(
                source,
                batch_size=batch_size if is_training else of_eval,
                seed=seed,
                shuffle=is_shuffled and source.shuffle,
                drop_remainder=is_training and drop_remainder,
            )

        def make_dataset() -> tf.data.Dataset:
            made = make()
            if isinstance(made, keras.utils.PyDataset):
                return from_py_dataset(made, seed=seed if is_shuffled else None)
            return made

        return DatasetBatches(
            make_dataset,
            # An evaluation is exact in batches of any size.
            batch_size=batch_size if is_training else None,
            name=self.name or f"the {split} dataset",
            drop_remainder=is_training and drop_remainder,
        )


class GivenData(Data):
    """Data by split, as it was given.

    Args:
        by_split: split to what `as_source` takes.
        shuffle: see `Data`.
        eval_batch_size: see `Data`.
    """

    def __init__(
        self,
        by_split: Mapping[str, Any],
        *,
        shuffle: bool = True,
        eval_batch_size: int | None = None,
    ) -> None:
        self.shuffle, self.eval_batch_size = shuffle, eval_batch_size
        self._by_split = {
            split: as_source(
                data,
                f"The {split} data",
                of="" if split in _PLAIN else f" of the {split} data",
            )
            for split, data in by_split.items()
        }
        self.splits = tuple(self._by_split)
        self.has_eval = "eval" in self.splits
        train = self._by_split.get("train")
        if train is not None and not isinstance(train, Examples):
            of_train = self.batches(
                "train", batch_size=0, seed=0, drop_remainder=False
            )
            self.batch_size = of_train.batch_size

    def check_batch_size(self, split: str, *, name: str) -> None:
        """Checks that a split takes a batch size.

        Raises:
            UserError: it yields batches itself.
        """
        data = self._by_split.get(split)
        if data is not None and not isinstance(data, Examples):
            raise UserError(
                f"{name} is for arrays, and the data is a "
                f"{type(data).__name__}, which yields batches itself. Leave "
                "it out."
            )

    def source(
        self, split: str, batch_size: int, seed: int
    ) -> Callable[[], Source]:
        """See `Data.source`."""
        if split in self._by_split:
            return lambda: self._by_split[split]
        if split == "eval":
            raise UserError(
                "There is no eval data: give it with the training data, as "
                "Trainer(data={'train': (x, y), 'eval': (x_val, y_val)}), or "
                "to the call: evaluate(x, y), fit(validation_data=(x, y))."
            )
        if split == "train":
            raise UserError(
                "There is no train data: pass Trainer(data=(x, y))."
            )
        raise UserError(
            f"data has no split {split!r}. {nearest(split, self._by_split)}"
        )


class DataFunction(Data):
    """Data by split, as a function returns it.

    Args:
        function: called with those of `split`, `batch_size`, `seed` and
            `data_dir` that are among its parameters; returns what `as_source`
            takes.
        data_dir: the directory of the files; `None` for the function's default.
    """

    def __init__(
        self, function: Callable[..., Any], data_dir: str | None
    ) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        # Otherwise left out, so that the function's own default holds.
        self._options = {} if data_dir is None else {"data_dir": data_dir}
        self.has_eval = "split" in self._accepted({"split": "eval"})

    def source(
        self, split: str, batch_size: int, seed: int
    ) -> Callable[[], Source]:
        """See `Data.source`; refuses a `data_dir` that is not taken."""
        name = self.name
        given = {"split": split, "batch_size": batch_size, "seed": seed}
        accepted = self._accepted(given | self._options)
        for option, value in self._options.items():
            if option not in accepted:
                raise UserError(
                    f"{option} = {value!r}: {name} does not read files."
                )
        if split != "train" and not self.has_eval:
            raise UserError(
                f"{name} takes no split, so it gives training data only. To "
                f"evaluate, add a parameter split ('train' or {split!r})."
            )

        def make() -> Source:
            with seeded(seed):
                made = self._function(**accepted)
                call = f"{name}(split={split!r})"
                return as_source(made, f"What {call} returned", f" of {call}")

        return make

    def _accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments that are among the function's parameters."""
        try:
            parameters = inspect.signature(self._function).parameters
        except ValueError:  # Some that are built in have none.
            return {}
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return arguments
        return {k: v for k, v in arguments.items() if k in parameters}


def as_data(data: Any, data_dir: str | None = None) -> Data | None:
    """The data of `Trainer(data=...)`; `None` if there is none.

    Raises:
        UserError: it is nothing that data can be.
    """
    if data is None:
        return None
    if callable(data) and not hasattr(data, "__array__"):
        return DataFunction(data, data_dir)
    if not is_by_split(data):
        return GivenData({"train": data})
    names = [name for name in data if name in _SYNONYMS]
    if names:
        raise UserError(
            f"data has a split {names[0]!r}: call it 'eval'. Splits: "
            "'train', 'eval', and any other for evaluate(split=...)."
        )
    return GivenData(data)


def is_by_split(data: Any) -> bool:
    """Whether data is a dict of splits; other dicts are inputs by name."""
    return isinstance(data, Mapping) and bool(data.keys() & _SPLITS)


def as_source(data: Any, name: str, of: str = "") -> Source:
    """Makes a source of batches from the user's data.

    Args:
        data: a `tf.data.Dataset` of batches, `Batches`, `Examples`, a
            `PyDataset`, a generator, or arrays: `x`, `(x, y)` or `(x, y,
            sample_weight)`.
        name: for messages about all of it.
        of: for those about a part: what follows `x`, `y` or `sample_weight`.

    Raises:
        UserError: it is none of these, or arrays do not fit together.
    """
    if isinstance(data, tf.data.Dataset | Batches | Examples):
        return data
    if isinstance(data, keras.utils.PyDataset):
        check_py_dataset(data)
        return data
    if isinstance(data, Iterator):
        return GeneratedBatches(data, name)
    parts = data if isinstance(data, tuple | list) else (data,)
    if len(parts) > 3:
        raise UserError(
            f"{name} is a {type(data).__name__} of {len(parts)}. Give (x, y) "
            "or (x, y, sample_weight); several inputs are a dict, or a list, "
            "in place of x."
        )
    named = {
        f"{key}{of}": as_arrays(part, f"{key}{of}")
        for key, part in zip(("x", "y", "sample_weight"), parts, strict=False)
    }
    leaves = [leaf for leaf in tf.nest.flatten(named) if leaf is not None]
    if not leaves:
        raise UserError(f"{name} is empty. Give (x, y).")
    check_rows(named)
    x, y, weight = (*named.values(), None, None)[:3]
    x = without_none(x)
    if any(leaf is None for leaf in tf.nest.flatten(x)):
        raise UserError(
            f"x{of} has None for an input, which is not optional there. An "
            "optional one may be None in a dict of inputs by name."
        )
    weight = weights_of_all(weight, int(leaves[0].shape[0]))
    for leaf in tf.nest.flatten(y):
        # A sparse tensor's type has no kind.
        if getattr(getattr(leaf, "dtype", None), "kind", "") in ("S", "U"):
            raise UserError(
                f"y{of} holds text, such as {str(leaf[0])!r}. Number the "
                "classes: classes, y = numpy.unique(y, return_inverse=True)."
            )
    return ArrayExamples(keras.utils.pack_x_y_sample_weight(x, y, weight))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes a function return the same data each time it is called.

    An operation without a seed, such as `Dataset.shuffle`, derives it from the
    global seed and the number of such operations before it. Python's and
    NumPy's generators are seeded, too. All of this is restored on exit.

    Args:
        seed: the run's seed.
    """
    # The global seed can be read and restored by private names only.
    ours = eager_context()
    before = ours._seed, getattr(ours, "_rng", None)
    python, numpy = random.getstate(), np.random.get_state()
    # This also restarts TensorFlow's sequence of operation seeds.
    tf.random.set_seed(seed)
    random.seed(seed)
    # NumPy accepts 32 bits only.
    np.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        ours._seed, ours._rng = before
        random.setstate(python)
        np.random.set_state(numpy)
