"""Files in the user's cache directory, as the XDG specification has it.

It is `trainer` in `$XDG_CACHE_HOME`, or in `~/.cache`.
"""

import os


def cache_path(*parts: str) -> str | None:
    """Returns the path of a cached file; `None` for a user without a home."""
    # An XDG variable that is not absolute has to be ignored.
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    return os.path.join(base, "trainer", *parts)
