"""Suggests the name that a mistyped one was meant to be."""

import difflib
from collections.abc import Iterable


def did_you_mean(
    name: str, valid: Iterable[str], *, prefix: str = "", cutoff: float = 0.6
) -> str:
    """Returns a hint if there are too many valid names to list them.

    Args:
        name: the name as written.
        valid: every name that would have been accepted.
        prefix: shown before the suggested name, such as `"--"`.
        cutoff: how similar it must be, from 0 to 1.

    Returns:
        `" Did you mean 'x'?"` with a leading space, or an empty string.
    """
    # Compare without case: `adam` should suggest `Adam`.
    lower: dict[str, str] = {}
    for one in sorted(set(valid)):
        lower.setdefault(one.lower(), one)
    close = difflib.get_close_matches(name.lower(), lower, 1, cutoff)
    return f" Did you mean '{prefix}{lower[close[0]]}'?" if close else ""
