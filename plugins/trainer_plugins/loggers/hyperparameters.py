"""The hyperparameters of a run: what was set, by gin or by flags."""

import ast
from typing import Any

import gin

Scalar = bool | int | float | str


def hyperparameters(run: Any) -> dict[str, Scalar]:
    """What was set, without any defaults, and batch size and learning rate.

    Args:
        run: the call that trains.

    Returns:
        Values by names such as `"Adam.learning_rate"`. Macros are replaced by
        their values; lists, `None` and references are left out.
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
    return {
        **{
            name: value
            for name, value in found.items()
            if "." in name and isinstance(value, Scalar)
        },
        **run.built.learning_rates(),
        "batch_size": run.spec.batch_size,
    }
