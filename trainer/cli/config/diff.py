"""Compares two configurations for changes that affect results."""

import re

from trainer.cli.config.gin_private import REGISTRY
from trainer.cli.config.statements import statements
from trainer.strategy.registry import strategies

# scope/module.Name.parameter = ...
_BINDING = re.compile(r"(?:[\w./]*/)?(?P<name>[\w.]+)\.\w+ =")


def changes(before: str, after: str) -> list[str]:
    """Returns the bindings that were added, removed or changed.

    Bindings of `run` and of strategy plugins do not count, because the length
    of a run and its devices may change between attempts.

    Returns:
        Lines that start with `"- "` (before) or `"+ "` (after).
    """
    plugins = set(strategies().values())
    ignored = {"run"} | {
        selector.split(".")[-1]
        for selector, one in REGISTRY.items()
        if one.wrapped in plugins
    }
    old, new = (
        [
            one
            for one in statements(text)
            if not (found := _BINDING.match(one))
            or found["name"].split(".")[-1] not in ignored
        ]
        for text in (before, after)
    )
    removed = [f"- {one}" for one in old if one not in new]
    added = [f"+ {one}" for one in new if one not in old]
    # Sort by name, so that the old and the new value are adjacent.
    return sorted(removed + added, key=lambda line: line[2:].split(" =")[0])
