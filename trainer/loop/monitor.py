"""`Monitor`: a value in the logs, and whether less or more of it is better."""

import math

from trainer.errors import UserError, nearest
from trainer.values.annotations import Direction, Text
from trainer.values.configurable import checked

# Parts of names whose values are better when smaller. They are tried first:
# "accuracy_loss" is a loss.
_SMALLER = (
    "loss",
    "error",
    "mse",
    "mae",
    "perplexity",
    "crossentropy",
    "divergence",
    "hinge",
)
_LARGER = (
    "acc",
    "auc",
    "precision",
    "recall",
    "f1",
    "score",
    "iou",
    # Keras names the metric MeanIoU mean_io_u.
    "io_u",
    "r2",
    "similarity",
)


@checked
class Monitor:
    """A value by name, and its direction.

    Args:
        name: as in Keras: `"loss"` of training, `"val_loss"` of evaluation.
        mode: `"min"`, `"max"`, or `"auto"` to go by the name.

    Raises:
        UserError: the name does not tell the mode.
    """

    def __init__(self, name: Text, mode: Direction = "auto") -> None:
        self.name = name
        self.mode = _mode_of(name) if mode == "auto" else mode

    def value(self, logs: dict[str, float]) -> float | None:
        """The monitored value; `None` before the first evaluation.

        Args:
            logs: training values, and evaluation values as `val_*`.

        Raises:
            UserError: there are values of its kind, but not this one.
        """
        if self.name in logs:
            return float(logs[self.name])
        evaluated = self.name.startswith("val_")
        valid = [key for key in logs if key.startswith("val_") == evaluated]
        # Without values of its kind, none may have been measured yet.
        if valid:
            raise UserError(
                f"monitor = {self.name!r} is not measured. "
                f"{nearest(self.name, valid)}"
            )
        return None

    def better(self, value: float, than: float, min_delta: float = 0.0) -> bool:
        """Whether a value improves on another; NaN never does."""
        if self.mode == "min":
            return value < than - min_delta
        return value > than + min_delta

    def best_first(self, values: dict[int, float]) -> list[int]:
        """Steps in the order of their values, the best first, newer first."""
        sign = 1.0 if self.mode == "min" else -1.0

        def order(step: int) -> tuple[bool, float, int]:
            value = values[step]
            # NaN last: it compares as false with everything.
            return math.isnan(value), sign * value, -step

        return sorted(values, key=order)


def _mode_of(name: str) -> str:
    lowered = name.lower()
    if any(part in lowered for part in _SMALLER):
        return "min"
    if any(part in lowered for part in _LARGER):
        return "max"
    raise UserError(
        f"The name {name!r} does not tell whether more is better. Set mode "
        "to 'min' or 'max'."
    )
