"""Turns what a data function returns into `Batches`."""

import inspect
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
    data_dir: str | None = None,
    drop_remainder: bool = False,
) -> Batches:
    """Calls a data plugin and makes batches of what it returns.

    Args:
        data: a function that gets those of `split`, `batch_size`, `seed` and
            `data_dir` that it names as parameters. It returns
            `Batches`, `Examples`, a `tf.data.Dataset` of global batches, or
            arrays such as `(x, y)`.
        split: `"train"` or `"eval"`.
        batch_size: examples in a global batch.
        seed: the run's seed.
        data_dir: where the files are, or `None` for the plugin's default.
        drop_remainder: whether to leave out a short training batch.

    Returns:
        The split's batches; training ones are shuffled if the examples say
        so.

    Raises:
        UserError: `data_dir` is given to a plugin that does not read one,
            there is no such split, or the result is none of the above.
    """
    name = getattr(data, "__name__", type(data).__name__)
    arguments: dict[str, Any] = {
        "split": split,
        "batch_size": batch_size,
        "seed": seed,
    }
    if data_dir is not None:
        arguments["data_dir"] = data_dir
    accepted = _accepted(data, arguments)
    if data_dir is not None and "data_dir" not in accepted:
        raise UserError(
            f"data_dir = {data_dir!r}: {name} does not take a data_dir."
        )

    if split == "eval" and "split" not in accepted:
        raise UserError(
            f"{name} takes no split, so all of its data is for training. To "
            "evaluate, let it take one ('train' or 'eval')."
        )

    # A dataset is made again for each iterator, and must be the same one.
    def make() -> Any:
        with seeded(seed):
            return data(**accepted)

    made = make()
    if isinstance(made, tf.data.Dataset):
        return DatasetBatches(
            make,
            batch_size=batch_size,
            name=name,
            drop_remainder=split == "train" and drop_remainder,
        )
    if isinstance(made, Batches):
        return made
    if isinstance(made, Examples | tuple | list | dict) or hasattr(
        made, "__array__"
    ):
        examples = made if isinstance(made, Examples) else ArrayExamples(made)
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


def _accepted(
    data: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Those of the arguments that the function names."""
    parameters = inspect.signature(data).parameters
    # A function with **kwargs takes all of them.
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {key: arguments[key] for key in arguments if key in parameters}
