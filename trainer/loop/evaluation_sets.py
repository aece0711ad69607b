"""The splits that a run evaluates, and the names of their values.

The values of the split `"eval"` are `val_loss`, as Keras calls them. Those of
any other set have its name in them: `val_rare/loss`. It is a slash because
`val_rare_loss` would be a value of `"eval"`, of an output named "rare".
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainer.errors import UserError
from trainer.run_options import EvalEvery
from trainer.runtime import schema
from trainer.values.periods import PeriodLike

EVAL = "eval"


def sets_of(eval_every: EvalEvery | None) -> dict[str, PeriodLike | None]:
    """The sets that are evaluated, with the period of each, in order.

    Args:
        eval_every: the period of the split `"eval"`, or a dict of periods by
            split; `None` is the default period.

    Raises:
        UserError: a split has a name that cannot be that of a set.
    """
    if not isinstance(eval_every, Mapping):
        return {EVAL: eval_every}
    for split in eval_every:
        if split == "train":
            raise UserError(
                "eval_every has the split 'train', whose values are those of "
                "training. To evaluate some of that data, give it as a split "
                "of another name, such as 'train_sample'."
            )
        # A directory for TensorBoard is named after a set.
        if not schema.WORD.fullmatch(split) or split.startswith("evaluator"):
            raise UserError(
                f"eval_every has the split {split!r}. Valid names of "
                "evaluation sets have letters, digits, '_', '-' and '.' only, "
                "and do not begin with 'evaluator'."
            )
    return dict(eval_every)


def prefix_of(split: str) -> str:
    """Returns the prefix of a split's values in logs and monitors."""
    if split == "train":
        return ""
    return "val_" if split == EVAL else f"val_{split}/"


def names_in_logs(split: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A split's values under their names in logs and monitors."""
    prefix = prefix_of(split)
    return {prefix + name: value for name, value in values.items()}


def all_in_logs(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of several splits under their names in logs."""
    return {
        name: value
        for split, its in values.items()
        for name, value in names_in_logs(split, its).items()
    }


def unprefixed(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of several splits, where there are none of training."""
    return {n.removeprefix("val_"): v for n, v in all_in_logs(values).items()}


def check_unambiguous(sets: Iterable[str], measured: Iterable[str]) -> None:
    """Checks that no value of the split `"eval"` has the name of another's.

    Args:
        sets: the splits that are evaluated.
        measured: the names of values.

    Raises:
        UserError: one has.
    """
    for name in measured:
        split = name.partition("/")[0]
        if split != name and split != EVAL and split in sets:
            raise UserError(
                f"The metric {name!r} of the split 'eval' would be logged as "
                f"{prefix_of(split)}{name.partition('/')[2]}, as a value of "
                f"the split {split!r} is. Give one of them another name."
            )
