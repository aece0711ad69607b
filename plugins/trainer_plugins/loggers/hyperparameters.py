"""The hyperparameters of a run: what was set, by gin or by flags."""

from typing import Any

import gin
from gin import config_parser

Scalar = bool | int | float | str


def hyperparameters(run: Any) -> dict[str, Scalar]:
    """What was set, without any defaults, and batch size and learning rate.

    Args:
        run: the call that trains.
    """
    return {
        **literal_bindings(gin.config_str(max_line_length=1 << 20)),
        **run.learning_rates(),
        "batch_size": run.spec.batch_size,
    }


def literal_bindings(config: str) -> dict[str, Scalar]:
    """Returns the scalar parameters in a gin configuration.

    Returns:
        Values by names such as `"Adam.learning_rate"`. Macros are replaced by
        their values; lists, `None` and references are left out.
    """
    names = _Names()
    found: dict[str, Scalar] = {}
    for statement in config_parser.ConfigParser(config, names):
        if not isinstance(statement, config_parser.BindingStatement):
            continue
        key = "/".join(filter(None, (statement.scope, statement.selector)))
        if not statement.arg_name:
            names.macros[key] = statement.value
        elif isinstance(statement.value, bool | int | float | str):
            found[f"{key}.{statement.arg_name}"] = statement.value
    return found


class _Names(config_parser.ParserDelegate):
    """Resolves names for the parser: macros become their values."""

    def __init__(self) -> None:
        self.macros: dict[str, Any] = {}

    def configurable_reference(self, name: str, evaluate: bool) -> None:
        # Nothing is imported or called here: a reference is not a scalar.
        return None

    def macro(self, name: str) -> Any:
        return self.macros.get(name)
