"""Refuses what is bound and not used."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from absl import logging
from gin.config import iterate_references

from trainer.cli.config.gin_private import (
    BOUND,
    MACRO,
    REGISTRY,
    Key,
    Origins,
    enclosing,
    operative,
)
from trainer.cli.config.names import minimal, strategies_in_gin
from trainer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from trainer.strategy.plugin import StrategyPlugin


def check_all_used(
    origins: Origins,
    *,
    selected: "StrategyPlugin",
    flags: Mapping[str, str] | None = None,
    only_warn: bool = False,
) -> list[str]:
    """Refuses a configuration with a binding that has no effect.

    Call this when everything is built. Exempt are the parameters of strategies
    that were not chosen, so that one file serves all strategies, and those
    that a named flag replaces.

    Args:
        origins: where each parameter was set.
        selected: the strategy plugin in use.
        flags: the named flags by the parameter that they set.
        only_warn: log a warning instead of raising.

    Returns:
        Such bindings, described.

    Raises:
        UserError: there are such bindings; it names them, where they were
            set, and the nearest used names.
    """
    flags = flags or {}
    idle = _of_idle_strategies(selected)
    used = set(_used())
    referred = {one.config_key for one in iterate_references(BOUND)}
    unused = [
        (*key, name)
        for key, values in BOUND.items()
        for name in values
        if (*key, name) not in used
        and key not in idle
        # Else the binding that refers to it is the one to report.
        and not (key[1] == MACRO and key in referred)
        and not (name in flags and origins.get((*key, name)) != flags[name])
    ]
    if not unused:
        return []
    described = [_describe(one, origins) for one in unused]
    count = "1 binding" if len(unused) == 1 else f"{len(unused)} bindings"
    message = (
        f"{count} in the configuration without any effect:\n"
        f"{'; '.join(described)}\n"
        "Correct or remove them, or pass --allow_unused_bindings."
    )
    if not only_warn:
        raise UserError(message)
    logging.warning("%s", message)
    return described


def _used() -> Iterator[tuple[str, str, str]]:
    """Yields the bindings from which calls have taken values."""
    for (active, selector), values in operative().items():
        for name in values:
            # A call in scope a/b takes a parameter from a/b, else from a, else
            # from the root scope.
            for scope in reversed(enclosing(active)):
                if name in BOUND.get((scope, selector), {}):
                    yield scope, selector, name
                    break


def _of_idle_strategies(selected: "StrategyPlugin") -> set[Key]:
    """Returns the keys of other strategies, and all that they refer to."""
    found: set[Key] = set()
    plugins = strategies_in_gin()
    waiting = [
        key
        for key in BOUND
        if key[1] in plugins
        and not isinstance(selected, REGISTRY[key[1]].wrapped)
    ]
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found.add(key)
        for reference in iterate_references(BOUND.get(key, {})):
            scope, selector = reference.config_key
            waiting += [(outer, selector) for outer in enclosing(scope)]
    return found


def _describe(found: tuple[str, str, str], origins: Origins) -> str:
    scope, selector, name = found
    shown, hint = scope, ""
    if selector != MACRO:
        own = f"{minimal(selector)}.{name}"
        used = {
            f"{minimal(one)}.{parameter}"
            for (_, one), values in operative().items()
            for parameter in values
        }
        shown = f"{scope}/{own}" if scope else own
        hint = did_you_mean(own, used - {own})
    where = origins.get(found)
    return f"{shown}{f' ({where})' if where else ''}{hint}"
