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


def difference(hellos: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns a message on how the tasks differ; `None` if they do not.

    Args:
        hellos: the `tasks` and `facts` of each task, the coordinator's first.
    """
    leader, own = next(iter(hellos.items()))
    for name, hello in hellos.items():
        if hello["tasks"] != own["tasks"]:
            return _other_cluster(leader, own["tasks"], name, hello["tasks"])
    # Every attempt gives the same message, whatever the order of arrival. At
    # a barrier there are no `tasks`, but the hellos are in order.
    order = [name for name in own["tasks"] if name in hellos] or [*hellos]
    for fact in sorted({fact for h in hellos.values() for fact in h["facts"]}):
        owners: dict[str, list[str]] = {}
        for name in order:
            value = hellos[name]["facts"].get(fact, "nothing")
            # As text, since a value such as a list cannot be a dictionary's
            # key.
            shown = json.dumps(value, sort_keys=True)
            owners.setdefault(shown, []).append(name)
        if len(owners) > 1:
            parts = [
                f"{_short(value)} on {listed(names)}"
                for value, names in owners.items()
            ]
            return (
                f"The tasks differ in {fact}: {'; '.join(parts)}. Start every "
                "task with the same command, code and versions."
            )
    return None


def _other_cluster(
    leader: str, own: Mapping[str, str], name: str, other: Mapping[str, str]
) -> str:
    for task in [*own, *other]:
        here, there = own.get(task), other.get(task)
        if here != there:
            return (
                f"{name} was given another cluster than {leader}: {task} is "
                f"{there or 'missing'} for {name} and "
                f"{here or 'missing'} for {leader}. Give all tasks the same."
            )
    return (
        f"{name} and {leader} list the tasks in different orders. Give all "
        "tasks the same cluster."
    )


def listed(names: Sequence[str]) -> str:
    """Returns the names as one text, of many only the first."""
    more = len(names) - _MOST_NAMES
    tail = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + tail


def _short(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}..."
