"""Whether less or more of a value is better, by its name.

Nothing here imports TensorFlow.
"""

import re
from typing import Literal

from trainer.errors import UserError

# Parts of names whose values are better when smaller. They are tried first:
# "accuracy_loss" is a loss.
_SMALLER = re.compile(
    "loss|error|mse|mae|perplexity|crossentropy|divergence|hinge"
)
# Keras names the metric MeanIoU mean_io_u.
_LARGER = re.compile("acc|auc|precision|recall|f1|score|iou|io_u|r2|similarity")


def direction_of(name: str) -> Literal["min", "max"]:
    """Returns `"min"` for a value that is better when smaller, else `"max"`.

    Raises:
        UserError: the name does not tell.
    """
    # Not by the name of an evaluation set, as in `val_rare/loss`.
    lowered = name.rpartition("/")[2].lower()
    if _SMALLER.search(lowered):
        return "min"
    if _LARGER.search(lowered):
        return "max"
    raise UserError(
        f"The name {name!r} does not tell whether more is better. Set mode "
        "to 'min' or 'max'."
    )
