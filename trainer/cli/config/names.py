"""Names from before the packages were renamed.

The installed packages are `trainer_plugins` and `trainer_experiments`, so that
`plugins` and `experiments` can be the user's own. Older gin files and run
directories contain `plugins.callbacks.Checkpoint` or
`import experiments.mnist`. Such a name is translated only if the user has
nothing by that name.
"""

import re

_RENAMED = {"plugins": "trainer_plugins", "experiments": "trainer_experiments"}
# Only the first part of a dotted name, and only if more parts follow.
_IN_TEXT = re.compile(rf"(?<![\w.])({'|'.join(_RENAMED)})(?=\.\w)")


def present_name(name: str) -> str | None:
    """Returns the current name for an old dotted name, or `None`."""
    root, _, rest = name.partition(".")
    return f"{_RENAMED[root]}.{rest}" if rest and root in _RENAMED else None


def with_present_names(text: str) -> str:
    """Returns a configuration with current names, for comparisons."""
    return _IN_TEXT.sub(lambda found: _RENAMED[found[1]], text)
