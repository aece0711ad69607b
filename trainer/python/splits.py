"""`Splits`: the data of a Trainer, by split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from trainer.data.batches import Batches, not_per_example, take_rows
from trainer.data.sources import Data, as_data
from trainer.errors import UserError

_BATCH_SIZE = 32  # As in Keras.


class Splits:
    """The data of a Trainer, and the global batches of each split.

    Args:
        data: see `trainer.Trainer`, as all that follow.
        batch_size: by default what a dataset has, otherwise 32.
        seed: for shuffling.
        data_dir: passed to `data` if that is a function.

    Attributes:
        batch_size: examples in a global batch.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int | None,
        seed: int,
        data_dir: str | None,
    ) -> None:
        self._data = as_data(data, data_dir)
        size = self._data and self._data.batch_size
        self.batch_size: int = batch_size or size or _BATCH_SIZE
        self._seed = seed
        self._made: dict[str, Batches] = {}
        self._example: Any = None

    def batches(self, split: str, *, drop_remainder: bool) -> Batches:
        """The global batches of a split.

        Args:
            split: `"train"`, `"eval"`, or another that the data has.
            drop_remainder: whether training leaves out a short last batch.

        Raises:
            UserError: there is no data, or it is not usable.
        """
        # Kept: counting a dataset of unknown length may take a while.
        if split not in self._made:
            if self._data is None:
                raise UserError(
                    f"There is no {split} data: pass Trainer(data=...), or "
                    "give it to the call, as in fit(x, y)."
                )
            self._made[split] = self._data.batches(
                split,
                batch_size=self.batch_size,
                seed=self._seed,
                drop_remainder=drop_remainder,
            )
        return self._made[split]

    def take(self, given: Data | None, batch_size: int | None) -> None:
        """Takes what `fit` was given in place of what there is.

        Args:
            given: the data; `None` keeps what there is.
            batch_size: `None` is that of the data, or what there is.
        """
        size = batch_size or (given and given.batch_size) or self.batch_size
        if given is not None:
            self._data = given
        # Data is taken again each time: the user may have changed the arrays.
        if given is not None or size != self.batch_size:
            self._made = {}
        self.batch_size = size

    @contextmanager
    def set_back_unless(self, is_used: Any) -> Iterator[None]:
        """Sets everything back if the call fails before the data is used.

        Args:
            is_used: a function that says whether it has been.
        """
        before = self._data, self.batch_size, dict(self._made)
        try:
            yield
        except BaseException:
            if not is_used():
                self._data, self.batch_size, self._made = before
            raise

    @property
    def has_eval(self) -> bool:
        """Whether there is an eval split, or may be."""
        return self._data is not None and self._data.has_eval

    def example(
        self, given: Batches | None, batches: Callable[[str], Batches]
    ) -> Any:
        """The inputs of one example, to build a model that knows no shapes.

        Args:
            given: what a call was given, which may be the only data.
            batches: gives those of a split.
        """
        # Kept: later copies of the model are built by the same.
        if self._example is None:
            found = given or batches(self._any_split())
            first = next(iter(found.read(start=0)))
            # Parts that are not per example may refer to rows of others.
            if not_per_example(first) is None:
                first = take_rows(first, 0, 1)
            x, _, _ = keras.utils.unpack_x_y_sample_weight(first)
            self._example = x
        return self._example

    def _any_split(self) -> str:
        """The split that training reads, or else one that is there."""
        splits = self._data.splits if self._data else ()
        return "train" if "train" in splits or not splits else splits[0]
