"""The hyperparameters of a run: settings that bear on its result."""

import ast
import inspect
from typing import Any

import gin
import keras

from trainer import Logger, Trainer
from trainer_plugins.callbacks.checkpoint import Checkpoint
from trainer_plugins.callbacks.export import Export
from trainer_plugins.callbacks.preemption import Preemption
from trainer_plugins.callbacks.progress import Progress
from trainer_plugins.callbacks.watchdog import Watchdog

Scalar = bool | int | float | str

# They change nothing that is learned.
_WATCH = (
    *(Checkpoint, Export, Logger, Preemption, Progress, Watchdog),
    keras.Metric,
)
# The Trainer or the optimizer has these: the values that were used stand for
# them, whichever of the two they were set for.
_USED = ("batch_size", "learning_rate")
# Options of a run; the others say where and how it runs, not to what end.
_OPTIONS = ("run.init_from", "run.init_only", "run.strategy")
_NOT_OF_THE_RESULT = ("name", "data_dir")


def hyperparameters(run: Any) -> dict[str, Scalar]:
    """Returns the settings that bear on the result, without any defaults.

    Args:
        run: the call that trains.

    Returns:
        Values by names such as `"Adam.beta_1"`, and those that were used as
        `"batch_size"`, `"learning_rate"` and `"train_steps"`. Macros are
        replaced by their values; lists, `None` and references are left out.
    """
    found: dict[str, Any] = {}
    # Macros come first. A value is on one line, however long it is.
    for line in gin.config_str(max_line_length=1 << 20).splitlines():
        name, _, value = line.partition(" = ")
        try:
            found[name] = ast.literal_eval(value)
        # No literal, such as `@function`, or no binding.
        except (ValueError, SyntaxError):
            found[name] = found.get(value.removeprefix("%"))
    used = {
        **run.built.learning_rates(),
        "batch_size": run.spec.batch_size,
        "train_steps": run.steps,
    }
    return {
        name: value
        for name, value in {**found, **used}.items()
        if isinstance(value, Scalar) and (name in used or _counts(name))
    }


def _counts(name: str) -> bool:
    """Whether a binding may change the result, and is shown by its name."""
    owner, _, parameter = name.rpartition(".")
    if not owner or parameter in _NOT_OF_THE_RESULT:
        return False
    if owner.rpartition(".")[2] == "run":
        return name.endswith(_OPTIONS)
    # A scope comes before a slash.
    made = gin.get_configurable(owner.rpartition("/")[2])
    kinds = made if inspect.isclass(made) else object
    if parameter in _USED:
        return not issubclass(kinds, (Trainer, keras.optimizers.Optimizer))
    return not issubclass(kinds, _WATCH)
