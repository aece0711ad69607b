"""The arguments of `Trainer.fit`, checked and put into ours."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.data.arrays import as_arrays, check_rows, weights_of_all
from trainer.data.batches import Batches
from trainer.data.examples import Examples
from trainer.data.sources import GivenData, as_data, is_by_split
from trainer.errors import UserError
from trainer.loop.schedule import FitEpochs
from trainer.run_options import EvalEvery
from trainer.values.words import shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitData:
    """The data that `fit` was given.

    Attributes:
        x: inputs, or data that yields batches; `None` for the Trainer's data.
        y: targets, if `x` is arrays.
        sample_weight: if `x` is arrays.
        validation_data: `(x, y)`, `(x, y, sample_weight)`, what yields
            batches, or a dict of these by split.
        validation_split: the part of the arrays, at their end, to evaluate.
        shuffle: whether arrays are shuffled in each epoch.
        batch_size: examples in a batch of arrays.
        validation_batch_size: of the validation data; for speed only.
    """

    x: Any = None
    y: Any = None
    sample_weight: Any = None
    validation_data: Any = None
    validation_split: float = 0.0
    shuffle: bool = True
    batch_size: int | None = None
    validation_batch_size: int | None = None

    def check(self, *, evaluates: bool, **of_evaluation: Any) -> None:
        """Checks that arguments fit together.

        Args:
            evaluates: whether anything is evaluated.
            **of_evaluation: arguments that only an evaluation uses; `None` if
                not given.

        Raises:
            UserError: they do not.
        """
        if self.x is None:
            of_data = {
                "y": self.y is not None,
                "sample_weight": self.sample_weight is not None,
                "validation_data": self.validation_data is not None,
                "validation_split": bool(self.validation_split),
                "shuffle": not self.shuffle,
                "validation_batch_size": bool(self.validation_batch_size),
            }
            given = [name for name, is_given in of_data.items() if is_given]
            if given:
                raise UserError(
                    f"fit got {given[0]}, but no x: the Trainer's own data, "
                    "Trainer(data={'train': ..., 'eval': ...}), is used as it "
                    "is. Give fit the data, too."
                )
        elif yields_batches(self.x):
            self._check_of_batches()
        if self.validation_split and self.validation_data is not None:
            raise UserError(
                "fit got validation_split and validation_data: choose one."
            )
        if not evaluates:
            for name, value in of_evaluation.items():
                if value is not None:
                    raise UserError(
                        f"{name} = {shown(value)}, but there is nothing to "
                        "evaluate: pass validation_data or validation_split "
                        "with x, or Trainer(data={'train': ..., 'eval': ...})."
                    )

    @property
    def evaluates(self) -> bool:
        """Whether there is something to evaluate among the arguments."""
        return bool(self.validation_split) or self.validation_data is not None

    @property
    def sets(self) -> tuple[str, ...]:
        """The splits of what there is to evaluate among the arguments."""
        if self.validation_data is None:
            return ("eval",)
        return tuple(self._validation_sets())

    def given(self) -> GivenData | None:
        """The data by split; `None` for the Trainer's own.

        Raises:
            UserError: it cannot be used.
        """
        if self.x is None:
            return None
        train: Any = self.x
        by_split: dict[str, Any] = {}
        if self.validation_data is not None:
            by_split |= self._validation_sets()
        if not yields_batches(self.x):
            train = (self.x, self.y, self.sample_weight)
        if self.validation_split:
            train, by_split["eval"] = _split(train, self.validation_split)
        by_split["train"] = train
        made = GivenData(
            by_split,
            shuffle=self.shuffle,
            eval_batch_size=self.validation_batch_size,
        )
        if self.validation_batch_size:
            made.check_batch_size("eval", name="validation_batch_size")
        return made

    def _validation_sets(self) -> dict[str, Any]:
        if not is_by_split(self.validation_data):
            return {"eval": self.validation_data}
        if "train" in self.validation_data:
            raise UserError(
                "validation_data has the split 'train', which is x. Leave it "
                "out, or give it another name."
            )
        return dict(self.validation_data)

    def _check_of_batches(self) -> None:
        kind = type(self.x).__name__
        for name in ("y", "sample_weight", "batch_size"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"fit got {name}, but x is a {kind}, which yields batches "
                    "of (x, y) or (x, y, sample_weight) itself."
                )
        if self.validation_split:
            raise UserError(
                f"validation_split needs arrays, and x is a {kind}. Split it, "
                "such as with take and skip, and pass validation_data."
            )


def evaluated_batches(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    data: Any,
    batch_size: int | None,
    default_batch_size: int,
    split: str,
) -> Batches | None:
    """The batches that `Trainer.evaluate` was given; `None` if it was not.

    Raises:
        UserError: arguments do not fit together, or data is not usable.
    """
    if x is None:
        if y is not None or sample_weight is not None:
            raise UserError("evaluate got y or sample_weight, but no x.")
    elif isinstance(x, int):
        raise UserError(
            f"evaluate got x = {x}. A number of batches has a name: "
            f"evaluate(steps={x})."
        )
    elif data is not None:
        raise UserError("evaluate got x and data: choose one.")
    elif not yields_batches(x):
        data = (x, y, sample_weight)
    elif y is not None or sample_weight is not None:
        raise UserError(
            f"evaluate got y or sample_weight, but x is a {type(x).__name__}, "
            "which yields them itself."
        )
    else:
        data = x
    if data is None:
        if batch_size is not None:
            raise UserError(
                "evaluate got batch_size, but no data: a split of the "
                "Trainer's own has the Trainer's batch_size. Leave it out."
            )
        return None
    given = as_data(data)
    if not isinstance(given, GivenData):
        raise UserError(
            "evaluate(data=...) is a function. Give what it returns, such as "
            "(x, y)."
        )
    if not is_by_split(data):
        given = GivenData({split: data})
    return _in_order(given, split, batch_size, default_batch_size)


def predicted_batches(x: Any, batch_size: int | None, default: int) -> Batches:
    """The batches of what `Trainer.predict` was given; see `_in_order`.

    Raises:
        UserError: it cannot be used, or has batches of its own.
    """
    # A tuple would be taken for (x, y).
    given = GivenData({"predict": x if yields_batches(x) else (x,)})
    return _in_order(given, "predict", batch_size, default)


def _in_order(
    given: GivenData, split: str, batch_size: int | None, default: int
) -> Batches:
    """The batches of data that a call was given, in order.

    Args:
        given: the data.
        split: which of it.
        batch_size: examples in a batch; `None` means the default.
        default: the Trainer's.

    Raises:
        UserError: the data has batches of its own, and another size is given.
    """
    if batch_size is not None:
        given.check_batch_size(split, name="batch_size")
    return given.batches(
        split, batch_size=batch_size or default, seed=0, drop_remainder=False
    )


def evaluations_of(
    data: FitData, *, freq: Any, steps: int | None, has_eval: bool
) -> dict[str, Any]:
    """Returns what `fit` evaluates and when, as arguments of a host loop.

    Args:
        data: what `fit` was given.
        freq: its `validation_freq`.
        steps: its `validation_steps`.
        has_eval: whether the Trainer's own data has an eval split.

    Raises:
        UserError: the arguments do not fit together.
    """
    by_set = isinstance(freq, Mapping)
    own = data.x is None
    evaluates = data.evaluates or (own and (by_set or has_eval))
    data.check(
        evaluates=evaluates,
        validation_steps=steps,
        validation_batch_size=data.validation_batch_size,
        validation_freq=None if isinstance(freq, int) and freq == 1 else freq,
    )
    return {
        "evaluate": evaluates,
        "eval_every": as_eval_every(freq, () if own and by_set else data.sets),
        "eval_steps": steps,
    }


def epochs_of(
    epochs: int, initial_epoch: int, steps_per_epoch: int | None
) -> FitEpochs:
    """The epochs of a call.

    Raises:
        UserError: there are none.
    """
    most = keras.config.max_epochs()
    epochs = epochs if most is None else min(epochs, most)
    if initial_epoch >= epochs:
        raise UserError(
            f"initial_epoch = {initial_epoch} leaves nothing to train: epochs "
            f"= {epochs} is the number of the epoch to end before, as in "
            "Keras. Give a larger one."
        )
    return FitEpochs(epochs, initial_epoch, steps_per_epoch)


def yields_batches(data: Any) -> bool:
    """Whether data yields batches by itself, and is not arrays."""
    return isinstance(
        data,
        tf.data.Dataset | keras.utils.PyDataset | Iterator | Batches | Examples,
    )


def _split(parts: tuple[Any, ...], share: float) -> tuple[Any, Any]:
    """Cuts arrays as Keras does: the end, before anything is shuffled."""
    names = ("x", "y", "sample_weight")
    arrays = {n: as_arrays(p, n) for n, p in zip(names, parts, strict=True)}
    check_rows(arrays)
    rows = int(keras.tree.flatten(arrays["x"])[0].shape[0])
    arrays["sample_weight"] = weights_of_all(arrays["sample_weight"], rows)
    at = math.floor(rows * (1.0 - share))
    if at in (0, rows):
        raise UserError(
            f"validation_split = {share} leaves no examples on one side of "
            f"{rows}. Give more data, or another share."
        )

    def cut(begin: int, end: int) -> tuple[Any, ...]:
        def rows_of(part: Any) -> Any:
            if isinstance(part, tf.SparseTensor):
                start = [begin] + [0] * (len(part.shape) - 1)
                size = [end - begin, *part.shape[1:]]
                return tf.sparse.slice(part, start, size)
            # A SciPy matrix of coordinates has no rows to take.
            return (part.tocsr() if hasattr(part, "tocsr") else part)[begin:end]

        return tuple(
            None if part is None else tf.nest.map_structure(rows_of, part)
            for part in arrays.values()
        )

    return cut(0, at), cut(at, rows)


def as_eval_every(freq: Any, sets: Sequence[str]) -> EvalEvery:
    """The periods that `validation_freq` means.

    Args:
        freq: a number of epochs, or a dict of these by set.
        sets: the splits of what is evaluated.

    Raises:
        UserError: it is a list of epochs, or leaves a set out.
    """
    if not isinstance(freq, Mapping):
        if list(sets) == ["eval"]:
            return _in_epochs(freq)
        return {split: _in_epochs(freq) for split in sets}
    left_out = [split for split in sets if split not in freq]
    if left_out:
        raise UserError(
            f"validation_freq has no {left_out[0]!r}, which validation_data "
            "has. Give the number of epochs for each set, or one for all."
        )
    return {split: _in_epochs(one) for split, one in freq.items()}


def _in_epochs(freq: Any) -> str:
    if isinstance(freq, int | np.integer) and freq >= 1:
        return f"{int(freq)} epochs"
    raise UserError(
        f"validation_freq = {shown(freq)}: only every n-th epoch can be "
        "evaluated. Give a whole number >= 1, such as 1; for chosen epochs "
        "call evaluate between two calls of fit."
    )
