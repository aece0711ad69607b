"""Fingerprints of what all tasks must share: code, configuration, values."""

import contextlib
import hashlib
import os
import pathlib
import re
import sys
import sysconfig
from collections.abc import Iterable

import gin
import numpy as np

from trainer.runtime.files import read

# Enough to tell two apart, and short enough for a message.
_DIGITS = 12
# Bindings that may differ between the tasks or hosts of a cluster. Comments and
# empty lines in the text depend on them.
_OF_ONE_TASK = re.compile(
    r"^((\w+\.)*(run\.task_(index|type)|\w+\.data_dir) =|#|$)"
)
_LIBRARY = sysconfig.get_paths()["stdlib"]
_INSTALLED = re.compile("(site|dist)-packages")
_PACKAGES = ("trainer", "trainer_plugins", "trainer_experiments")


def configuration() -> str:
    """Returns a hash of the whole gin configuration.

    The index of the task and the directory of its data do not count.
    """
    # One line per binding: a long path would break it elsewhere.
    lines = gin.config_str(max_line_length=1 << 20).splitlines()
    kept = [line for line in lines if not _OF_ONE_TASK.match(line)]
    return _hash("\n".join(kept).encode())


def code() -> str:
    """Returns a hash of the sources of the framework and of user modules.

    User modules are those imported so far from outside of Python's folders.
    """
    paths = {os.path.realpath(path) for path in _own_modules()}
    # Whole packages: tasks of different kinds import different parts of them.
    for name in _PACKAGES:
        package = sys.modules.get(name)
        if package is not None and package.__file__ is not None:
            folder = pathlib.Path(os.path.realpath(package.__file__)).parent
            paths.update(map(str, folder.rglob("*.py")))
    sources = []
    for path in paths:
        # The file may be gone since it was imported.
        with contextlib.suppress(OSError):
            sources.append(hashlib.sha256(read(path)).digest())
    # Without paths, because hosts may keep the code in different folders.
    return _hash(b"".join(sorted(sources)))


def arrays(values: Iterable[np.ndarray]) -> str:
    """Returns a hash of arrays, to the last bit."""
    digest = hashlib.sha256()
    for value in values:
        # Of texts, an array holds only where they are.
        is_text = value.dtype == object
        digest.update(
            repr(value.tolist()).encode() if is_text else value.tobytes()
        )
    return digest.hexdigest()[:_DIGITS]


def _own_modules() -> list[str]:
    # A copy, because lazy imports on other threads change the dictionary.
    paths = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    return [
        path
        for path in paths
        if isinstance(path, str)
        and path.endswith(".py")
        and not path.startswith(_LIBRARY)
        and not _INSTALLED.search(path)
    ]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
