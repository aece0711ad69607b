"""`limit_eval`: evaluates a part of the data, and says how much that is."""

from typing import NamedTuple

from absl import logging

from trainer.errors import UserError
from trainer.loop.evaluator import count_of
from trainer.loop.running_trainer import RunningTrainer


class Measured(NamedTuple):
    """What an evaluation measures.

    Attributes:
        steps: how many batches; `None` means all.
        note: values that stand beside those of each evaluation.
    """

    steps: int | None
    note: dict[str, float]

    def of(self, trainer: RunningTrainer, split: str) -> dict[str, float]:
        """Measures it."""
        return {**trainer.evaluate(split=split, steps=self.steps), **self.note}


def limited(
    trainer: RunningTrainer,
    split: str,
    *,
    steps: int | None,
    limit: int | float | None,
) -> Measured:
    """How much of a split is measured.

    Args:
        trainer: built; has the data.
        split: which one.
        steps: `eval_steps`, which is not commented on.
        limit: a number of batches, or a share of them, rounded down, but at
            least one; `None` sets no limit.

    Raises:
        UserError: both are given, or the data has no end.
    """
    if limit is None:
        return Measured(steps, {})
    if steps is not None:
        raise UserError(
            f"eval_steps = {steps} and limit_eval = {limit} both say how much "
            "is evaluated: give one of them."
        )
    batches = trainer.batches(split)
    if isinstance(limit, float):
        whole = count_of(
            batches, None, name="limit_eval to a number, not a share"
        )
        count = max(1, int(limit * whole))
    else:
        count = count_of(batches, limit, name="limit_eval")
    length, size = batches.steps_per_epoch, batches.batch_size
    of = "" if length is None else f" of {length:,}"
    if count == length:
        logging.info("limit_eval = %s is the whole %s split.", limit, split)
        return Measured(count, {})
    examples = "" if size is None else f" ({count * size:,} examples)"
    logging.warning(
        "limit_eval = %s: each evaluation measures the first %d%s batches%s, "
        "not the whole %s split.",
        limit,
        count,
        of,
        examples,
        split,
    )
    # Beside the values wherever they go, so that nobody takes them for those
    # of the whole split.
    note = (
        {"batches": float(count)}
        if size is None
        else {"examples": float(count * size)}
    )
    return Measured(count, note)
