"""Reads gin's own text, such as that of `config.gin`.

Nothing here imports gin or TensorFlow.
"""

import re

# A statement, which gin wraps by indentation if it is long.
_BINDING = re.compile(r"^([\w./]+) =(.*(?:\n +.*)*)", re.MULTILINE)


def bindings_of(text: str) -> dict[str, str]:
    """Returns the values that are bound, as gin text on one line."""
    return {
        name: " ".join(value.replace("\\\n", " ").split())
        for name, value in _BINDING.findall(text)
    }
