"""Messages on tasks that are missing, or that differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_NAMES = 8
_MOST_CHARACTERS = 60


def label(name: str, tasks: Mapping[str, str]) -> str:
    """Returns a task as messages show it, as `"worker 1 (n1:2222)"`."""
    return f"{name} ({tasks.get(name, '?')})"


def missing(
    names: Sequence[str], tasks: Mapping[str, str], seconds: float
) -> str:
    """Returns a message that names the tasks that are missing."""
    shown = [label(name, tasks) for name in names]
    return f"peers missing after {seconds:g} s: {listed(shown)}"


def difference(facts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns a message on how the tasks differ; `None` if they do not.

    Args:
        facts: those of each task; the others are compared with the first.
    """
    first, *others = facts.values()
    if all(other == first for other in others):
        return None
    for fact in sorted({fact for found in facts.values() for fact in found}):
        owners: dict[str, list[str]] = {}
        for name, found in facts.items():
            # As text, since a value such as a list cannot be a dictionary's
            # key.
            shown = json.dumps(found.get(fact, "nothing"), sort_keys=True)
            owners.setdefault(shown, []).append(name)
        if len(owners) > 1:
            parts = [
                f"{_short(value)} on {listed(names)}"
                for value, names in owners.items()
            ]
            return (
                f"The tasks differ in {fact}: {'; '.join(parts)}. Start every "
                "task with the same command, code, versions and data, on hosts "
                "with the same devices."
            )
    return None


def listed(names: Sequence[str]) -> str:
    """Returns the names as one text, of many only the first."""
    more = len(names) - _MOST_NAMES
    tail = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + tail


def _short(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}..."
