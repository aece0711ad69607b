"""`Monitor`: a value in the logs, and whether less or more of it is better."""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import keras

from trainer.errors import UserError, nearest
from trainer.loop.evaluation_sets import prefix_of
from trainer.values.annotations import Direction, Text
from trainer.values.configurable import checked
from trainer.values.direction import direction_of


@checked
class Monitor:
    """A value by name, and its direction.

    Args:
        name: as in Keras: `"loss"` of training, `"val_loss"` of evaluation;
            `"val_rare/loss"` of the evaluation set `"rare"`.
        mode: `"min"`, `"max"`, or `"auto"` to go by the name.

    Raises:
        UserError: the name does not tell the mode.
    """

    def __init__(self, name: Text, mode: Direction = "auto") -> None:
        self.name = name
        self.mode = direction_of(name) if mode == "auto" else mode

    def value(self, logs: dict[str, float]) -> float | None:
        """The monitored value; `None` before the first evaluation.

        Args:
            logs: training values, and evaluation values as `val_*`.

        Raises:
            UserError: there are values of its kind, but not this one.
        """
        if self.name in logs:
            return float(logs[self.name])
        valid = [key for key in logs if _kind_of(key) == _kind_of(self.name)]
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


def check_monitored(
    callbacks: Sequence[keras.callbacks.Callback],
    *,
    measured: AbstractSet[str],
    evaluated: AbstractSet[str],
    sets: Sequence[str],
    may_add: bool,
) -> None:
    """Checks that what callbacks watch will be measured.

    Args:
        callbacks: Keras' and ours; what is under `monitor`, or a `Monitor`.
        measured: the names of training values.
        evaluated: those of evaluation values, without a prefix.
        sets: the splits that are evaluated.
        may_add: whether evaluation has a step of its own, and other values.

    Raises:
        UserError: it will not.
    """
    # Such as one that adds a value to the logs at the end of an epoch.
    may_add = may_add or any(map(_is_users, callbacks))
    valid = sorted(measured) + [
        prefix_of(split) + name
        for split in sets
        for name in sorted(evaluated)
        if "learning_rate" not in name
    ]
    for callback in callbacks:
        for name in _watched_by(callback):
            if name in valid:
                continue
            what = f"{type(callback).__name__}.monitor = {name!r}"
            if name.startswith("val_") and not sets:
                raise UserError(
                    f"{what}, but nothing is evaluated. Give fit "
                    "validation_data, use train_and_evaluate or "
                    "--mode=train_and_eval, or monitor one "
                    f"of: {', '.join(valid)}."
                )
            if not may_add:
                raise UserError(
                    f"{what} is not measured. {nearest(name, valid)}"
                )


def _kind_of(name: str) -> str:
    """What is the same for all values of a split: the part before the last."""
    if not name.startswith("val_"):
        return ""
    return name.rpartition("/")[0] or "val_"


def _watched_by(callback: keras.callbacks.Callback) -> list[str]:
    found = [m.name for m in vars(callback).values() if isinstance(m, Monitor)]
    name = getattr(callback, "monitor", None)
    # Without this option, ModelCheckpoint ignores its monitor.
    if isinstance(name, str) and getattr(callback, "save_best_only", True):
        found.append(name)
    return found


def _is_users(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is neither Keras' nor this project's."""
    # The functions that it calls are the user's.
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    package = type(callback).__module__.partition(".")[0]
    return package not in ("keras", "trainer", "trainer_plugins")
