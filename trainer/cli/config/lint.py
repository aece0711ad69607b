"""Finds bindings that nothing has used."""

from collections.abc import Mapping

from absl import logging

from trainer.cli.config import gin_private as internals
from trainer.cli.config.reader import Origins
from trainer.cli.config.suggest import did_you_mean
from trainer.errors import UserError
from trainer.strategy.plugin import StrategyPlugin

Key = tuple[str, str]  # scope and complete selector


def check_all_used(
    origins: Origins,
    *,
    selected: StrategyPlugin,
    flags: Mapping[str, str] | None = None,
    only_warn: bool = False,
) -> None:
    """Refuses a configuration with a binding that has no effect.

    Call this when everything is built. Exempt are the parameters of strategies
    that were not chosen, so that one file serves all strategies, and those
    that a named flag replaces.

    Args:
        origins: where each parameter was set.
        selected: the strategy plugin in use.
        flags: the named flags by the parameter that they set.
        only_warn: log a warning instead of raising.

    Raises:
        UserError: there are such bindings; it names them, where they were
            set, and the nearest used names.
    """
    exempt = _exempt(selected, flags or {}, origins)
    unused = [
        found for found in unused_bindings() if not _covers(exempt, found)
    ]
    if not unused:
        return
    names = _operative_names()
    listed = "; ".join(_describe(one, origins, names) for one in unused)
    count = "1 binding" if len(unused) == 1 else f"{len(unused)} bindings"
    message = (
        f"{count} in the configuration without any effect:\n{listed}\n"
        "Correct or remove them, or pass --allow_unused_bindings."
    )
    if not only_warn:
        raise UserError(message)
    logging.warning("%s", message)


def unused_bindings() -> list[tuple[str, str, str]]:
    """Returns the bindings that no call has used so far.

    A macro counts as unused only if no binding refers to it; otherwise that
    binding is the one to report.

    Returns:
        Scope, complete selector and parameter of each.
    """
    bound = internals.bindings()
    operative = internals.operative()
    referred = {
        reference.config_key
        for values in bound.values()
        for reference in internals.references(values)
    }
    return [
        (scope, selector, name)
        for (scope, selector), values in bound.items()
        for name in values
        if not _used((scope, selector), name, bound, operative)
        and not (selector == internals.MACRO and (scope, selector) in referred)
    ]


def _used(
    key: Key,
    name: str,
    bound: internals.Bindings,
    operative: internals.Bindings,
) -> bool:
    """Whether a call took its value from this scope, not from an inner one."""
    scope, selector = key
    for (active, called), values in operative.items():
        if called != selector or name not in values:
            continue
        # A call in scope a/b takes a parameter from a/b, else from a, else from
        # the root scope. Only the innermost of them is used.
        sources = [
            outer
            for outer in _enclosing(active)
            if name in bound.get((outer, selector), {})
        ]
        if sources and sources[-1] == scope:
            return True
    return False


def _enclosing(scope: str) -> list[str]:
    """Returns the scope and those around it, the outermost first."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def _exempt(
    selected: StrategyPlugin, flags: Mapping[str, str], origins: Origins
) -> set[tuple[str, str, str | None]]:
    """Returns scoped selectors or single parameters that may be unused."""
    bound = internals.bindings()
    replaced: set[tuple[str, str, str | None]] = {
        (*key, name)
        for key, values in bound.items()
        for name in values
        if name in flags and origins.get((*key, name)) != flags[name]
    }
    # The same file runs under several strategies, so the bindings of the
    # others, and all that those refer to, stay unused.
    idle = [
        key
        for key in bound
        if _is_idle_strategy(internals.wrapped(key[1]), selected)
    ]
    exempt = {(*key, None) for key in _reachable(idle, bound)}
    return replaced | exempt


def _is_idle_strategy(target: object, selected: StrategyPlugin) -> bool:
    return (
        isinstance(target, type)
        and issubclass(target, StrategyPlugin)
        and not isinstance(selected, target)
    )


def _reachable(start: list[Key], bound: internals.Bindings) -> set[Key]:
    """Returns the keys of `start` and all that their values refer to."""
    found: set[Key] = set()
    waiting = list(start)
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found.add(key)
        for reference in internals.references(bound.get(key, {})):
            scope, selector = reference.config_key
            waiting += [(outer, selector) for outer in _enclosing(scope)]
    return found


def _covers(
    exempt: set[tuple[str, str, str | None]], found: tuple[str, str, str]
) -> bool:
    return found in exempt or (*found[:2], None) in exempt


def _operative_names() -> list[str]:
    return [
        f"{internals.minimal(selector)}.{name}"
        for (_, selector), values in internals.operative().items()
        for name in values
    ]


def _describe(
    found: tuple[str, str, str], origins: Origins, names: list[str]
) -> str:
    scope, selector, name = found
    if selector == internals.MACRO:
        shown, hint = scope, ""
    else:
        plain = f"{internals.minimal(selector)}.{name}"
        others = [one for one in names if one != plain]
        shown = f"{scope}/{plain}" if scope else plain
        hint = did_you_mean(plain, others)
    where = origins.get(found)
    return f"{shown}{f' ({where})' if where else ''}{hint}"
