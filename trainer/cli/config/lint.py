"""Finds bindings that refer to nothing, to themselves, or that are unused."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from absl import logging

from trainer.cli.config import gin_private as internals
from trainer.cli.config.gin_private import Bindings, Key, Origins
from trainer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from trainer.strategy.plugin import StrategyPlugin


def check_references(origins: Origins) -> None:
    """Refuses macros that are not defined, and values that need themselves.

    Gin notices the first without the line, and the second never.
    """
    bound = internals.bindings()
    macros = [scope for scope, sel in bound if sel == internals.MACRO]
    done: set[Key] = set()
    for (scope, selector), values in bound.items():
        for name, value in values.items():
            where = origins.get((scope, selector, name), "gin")
            for reference in internals.references(value):
                key = reference.config_key
                if key[1] == internals.MACRO and key not in bound:
                    raise UserError(
                        f"{where}: the macro %{key[0]} is not defined."
                        f"{did_you_mean(key[0], macros, prefix='%')}"
                    )
        circle = _circle((scope, selector), bound, done)
        if circle:
            key = next(iter(circle))
            there = (origins.get((*key, name)) for name in bound.get(key, {}))
            shown = " -> ".join([*circle.values(), circle[key]])
            raise UserError(f"{next(there, where)}: it needs itself: {shown}.")


def _circle(start: Key, bound: Bindings, done: set[Key]) -> dict[Key, str]:
    """Returns the calls, and references, by which a call leads to itself."""
    path = {start: ""}
    waiting = [_needs(start, bound)]
    while waiting:
        for reference, key in waiting[-1]:
            if key in path:
                keys = list(path)
                circle = {one: path[one] for one in keys[keys.index(key) :]}
                return circle | {key: reference}
            if key not in done:
                path[key] = reference
                waiting.append(_needs(key, bound))
                break
        else:
            waiting.pop()
            done.add(path.popitem()[0])
    return {}


def _needs(key: Key, bound: Bindings) -> Iterator[tuple[str, Key]]:
    """Yields what a call in a scope evaluates first."""
    scope, selector = key
    values: dict[str, object] = {}
    for outer in internals.enclosing(scope):
        values |= bound.get((outer, selector), {})
    for reference in internals.references(values):
        if reference.evaluate:
            inner, needed = reference.config_key
            yield repr(reference), (inner or scope, needed)


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
    exempt = _exempt(selected, flags or {}, origins)
    unused = [found for found in unused_bindings() if found not in exempt]
    if not unused:
        return []
    names = [
        f"{internals.minimal(selector)}.{name}"
        for (_, selector), values in internals.operative().items()
        for name in values
    ]
    described = [_describe(one, origins, names) for one in unused]
    listed = "; ".join(described)
    count = "1 binding" if len(unused) == 1 else f"{len(unused)} bindings"
    message = (
        f"{count} in the configuration without any effect:\n{listed}\n"
        "Correct or remove them, or pass --allow_unused_bindings."
    )
    if not only_warn:
        raise UserError(message)
    logging.warning("%s", message)
    return described


def unused_bindings() -> list[tuple[str, str, str]]:
    """Returns the bindings that no call has used so far.

    A macro counts as unused only if no binding refers to it; otherwise that
    binding is the one to report.

    Returns:
        Scope, complete selector and parameter of each.
    """
    bound = internals.bindings()
    referred = {
        reference.config_key
        for values in bound.values()
        for reference in internals.references(values)
    }
    used = set(_used(bound))
    return [
        (*key, name)
        for key, values in bound.items()
        for name in values
        if (*key, name) not in used
        and not (key[1] == internals.MACRO and key in referred)
    ]


def _used(bound: Bindings) -> Iterator[tuple[str, str, str]]:
    """Yields the bindings from which calls have taken values."""
    for (active, selector), values in internals.operative().items():
        for name in values:
            # A call in scope a/b takes a parameter from a/b, else from a, else
            # from the root scope.
            for scope in reversed(internals.enclosing(active)):
                if name in bound.get((scope, selector), {}):
                    yield scope, selector, name
                    break


def _exempt(
    selected: "StrategyPlugin", flags: Mapping[str, str], origins: Origins
) -> set[tuple[str, str, str]]:
    """Returns the bindings that may be unused."""
    bound = internals.bindings()
    # The same file runs under several strategies, so the bindings of the
    # others, and all that those refer to, stay unused.
    idle = _reachable(
        [
            key
            for key in bound
            if _is_idle_strategy(internals.wrapped(key[1]), selected)
        ],
        bound,
    )
    return {
        (*key, name)
        for key, values in bound.items()
        for name in values
        if key in idle
        or (name in flags and origins.get((*key, name)) != flags[name])
    }


def _is_idle_strategy(target: object, selected: "StrategyPlugin") -> bool:
    # Not at the top, because it imports TensorFlow.
    from trainer.strategy.plugin import StrategyPlugin

    return (
        isinstance(target, type)
        and issubclass(target, StrategyPlugin)
        and not isinstance(selected, target)
    )


def _reachable(start: list[Key], bound: Bindings) -> set[Key]:
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
            waiting += [
                (outer, selector) for outer in internals.enclosing(scope)
            ]
    return found


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
