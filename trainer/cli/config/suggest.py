"""Guesses what a mistyped name was meant to be."""

import difflib
from collections.abc import Iterable


def did_you_mean(
    name: str, valid: Iterable[str], *, prefix: str = "", cutoff: float = 0.6
) -> str:
    """A hint for a set of names that is too long to be listed.

    Args:
        name: what the user wrote.
        valid: every name that would have been accepted.
        prefix: put before the name that is shown, such as `"--"`.
        cutoff: how similar it must be, from 0 to 1.

    Returns:
        `" Did you mean 'x'?"` with the blank before it, or nothing.
    """
    lower: dict[str, str] = {}
    for one in sorted(set(valid)):
        lower.setdefault(one.lower(), one)
    close = difflib.get_close_matches(name.lower(), lower, 1, cutoff)
    return f" Did you mean '{prefix}{lower[close[0]]}'?" if close else ""
