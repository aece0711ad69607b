"""Turns the result of a data plugin into batches."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.data.batches import Batches
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import ArrayExamples, Examples
from trainer.data.indexed_batches import IndexedBatches
from trainer.data.seeds import seeded
from trainer.errors import UserError


def as_batches(
    data: Callable[..., Any],
    *,
    split: str,
    batch_size: int,
    seed: int,
    data_dir: str | os.PathLike[str] | None = None,
    drop_remainder: bool = False,
) -> Batches:
    """Calls a data plugin and turns its result into batches.

    Args:
        data: a function. It is called with those of `split`, `batch_size`,
            `seed` and `data_dir` that are among its parameters, and returns
            `Batches`, `Examples`, a `tf.data.Dataset` of global batches, or
            arrays such as `(x, y)`.
        split: `"train"`, `"eval"`, or another to evaluate.
        batch_size: examples in a global batch.
        seed: the run's seed.
        data_dir: the directory of the files; `None` for the plugin's default.
        drop_remainder: whether to leave out a short training batch.

    Returns:
        The batches of the split. Training batches are shuffled unless the
        examples turn this off.

    Raises:
        UserError: `data_dir` is given but the plugin does not take it, the
            plugin has no such split, or its result is of another type.
    """
    # Long by its documentation, and by a sentence for each mistake.
    name = getattr(data, "__name__", type(data).__name__)
    arguments: dict[str, Any] = {
        "split": split,
        "batch_size": batch_size,
        "seed": seed,
    }
    # Otherwise left out, so that the function's own default holds.
    if data_dir is not None:
        arguments["data_dir"] = data_dir
    accepted = _accepted(data, arguments)
    if data_dir is not None and "data_dir" not in accepted:
        raise UserError(f"data_dir = {data_dir!r}: {name} does not read files.")

    if split != "train" and "split" not in accepted:
        raise UserError(
            f"{name} takes no split, so it gives training data only. To "
            f"evaluate, add a parameter split ('train' or {split!r})."
        )

    # Called again for each iterator of a dataset, see `DatasetBatches`.
    def make() -> Any:
        with seeded(seed):
            return data(**accepted)

    made = make()
    if isinstance(made, tf.data.Dataset):
        return DatasetBatches(
            make,
            batch_size=batch_size,
            name=name,
            # Evaluation always uses all examples.
            drop_remainder=split == "train" and drop_remainder,
        )
    if isinstance(made, Batches):
        return made
    if isinstance(made, Examples | tuple | list | dict) or hasattr(
        made, "__array__"
    ):
        examples = made if isinstance(made, Examples) else ArrayExamples(made)
        # Only training shuffles, or drops a short batch: an evaluation is over
        # all examples, in their order.
        training = split == "train"
        return IndexedBatches(
            examples,
            batch_size=batch_size,
            seed=seed,
            shuffle=training and examples.shuffle,
            drop_remainder=training and drop_remainder,
        )
    raise UserError(
        f"{name}(split={split!r}) returned a {type(made).__name__}. Valid: "
        "Batches, Examples, a tf.data.Dataset of batches, or arrays (x, y)."
    )


def takes_split(data: Callable[..., Any]) -> bool:
    """Whether a data plugin gives more than training data."""
    return "split" in _accepted(data, {"split": "eval"})


def _accepted(
    data: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments that are among the function's parameters."""
    parameters = inspect.signature(data).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {key: arguments[key] for key in arguments if key in parameters}
