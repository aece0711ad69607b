"""`Monitor`: a value in the logs, and whether less or more of it is better."""

import math
from collections.abc import Sequence

import keras
from absl import logging

from trainer.errors import UserError, nearest
from trainer.loop.evaluation_sets import check_unambiguous, prefix_of
from trainer.loop.logged import check_name
from trainer.loop.run import Run
from trainer.values.annotations import Direction, Text
from trainer.values.configurable import checked
from trainer.values.direction import direction_of

# The packages whose callbacks are not the user's.
OURS = frozenset({"keras", "trainer", "trainer_plugins"})


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

        # NaN last: it compares as false with everything.
        found = [(math.isnan(v), sign * v, -s) for s, v in values.items()]
        return [-step for *_, step in sorted(found)]


def check_names(
    run: Run, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Checks that what callbacks watch will be measured, under one name.

    Args:
        run: whose steps have been traced.
        callbacks: Keras' and ours; what is under `monitor`, or a `Monitor`.

    Raises:
        UserError: it will not, two values would have one name, or not every
            logger takes a name. In Python, a callback of Keras' kind continues
            with a warning, as in Keras.
    """
    packing = getattr(run.train_runner, "packing", None)
    traced = [] if packing is None else packing.names
    measures = run.parts.metrics.measures
    measured = {
        "loss",
        # Parts of the loss have a prefix, what is no value an underscore.
        *(n for n in traced if ":" not in n and not n.startswith("_")),
        *(n for n, m in measures.items() if not m.of_whole_set),
    }
    evaluated = sorted({*measured, *measures})
    check_unambiguous(run.sets, evaluated)
    for name in evaluated:
        check_name(name, "A metric, an output or a step's value has")
    valid = sorted({*measured, *run.built.learning_rates()}) + [
        prefix_of(split) + name for split in run.sets for name in evaluated
    ]
    may_add = (
        # Evaluation has a step of its own, and other values.
        run.spec.has_own("eval_step")
        # What runs as Python shows its values only once it has run.
        or run.spec.run_eagerly
        # Such as one that adds a value to the logs at the end of an epoch.
        or any(map(_is_users, callbacks))
    )
    for callback in callbacks:
        for name in _watched_by(callback):
            if name in valid:
                continue
            what = f"{type(callback).__name__}.monitor = {name!r}"
            if name.startswith("val_") and not run.sets:
                why = (
                    f"{what}, but nothing is evaluated. Give fit "
                    "validation_data, use train_and_evaluate or "
                    "--mode=train_and_eval, or monitor one "
                    f"of: {', '.join(valid)}."
                )
            elif may_add:
                continue
            else:
                why = f"{what} is not measured. {nearest(name, valid)}"
            # Ours has the run; and only the command line sets facts.
            if hasattr(callback, "run") or run.plugin.facts:
                raise UserError(why)
            logging.warning("%s Keras' callback continues without it.", why)


def _kind_of(name: str) -> str:
    """Returns the prefix that all values of a split share."""
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
    return type(callback).__module__.partition(".")[0] not in OURS
