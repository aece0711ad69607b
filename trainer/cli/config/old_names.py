"""Names that gin files had before the packages were renamed.

What is installed is `trainer_plugins` and `trainer_experiments`: a package
`plugins` or `experiments` is the user's own. Gin files and run directories
of before say `plugins.callbacks.Checkpoint` or `import experiments.mnist`;
that is tried when nothing of the user's has the name.
"""

import re

_RENAMED = {"plugins": "trainer_plugins", "experiments": "trainer_experiments"}
_IN_TEXT = re.compile(rf"(?<![\w.])({'|'.join(_RENAMED)})(?=\.\w)")


def present_name(name: str) -> str | None:
    """What a dotted name of before is called now; `None` if it is not one."""
    root, _, rest = name.partition(".")
    return f"{_RENAMED[root]}.{rest}" if rest and root in _RENAMED else None


def with_present_names(text: str) -> str:
    """A configuration's text with the present names, to compare two."""
    return _IN_TEXT.sub(lambda found: _RENAMED[found[1]], text)
