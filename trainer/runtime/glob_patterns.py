"""Works around paths that TensorFlow takes for glob patterns.

Its checkpoint reader searches for files that match the given path. In a
directory such as `lr=[0.1]` it therefore finds nothing.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from trainer.runtime.local_files import is_local

_SPECIAL = re.compile(r"[\[\]*?\\{}]")
_OPEN_FILES = "/proc/self/fd"


@contextlib.contextmanager
def without_pattern(directory: str) -> Iterator[str]:
    """Yields a path to a directory that contains no pattern.

    Args:
        directory: an existing path, local or supported by `tf.io.gfile`.

    Yields:
        A path to the same files, or to a copy of a remote directory.
    """
    if not _SPECIAL.search(directory):
        yield directory
    elif not is_local(directory):
        with tempfile.TemporaryDirectory() as copy:
            for name in tf.io.gfile.listdir(directory):
                tf.io.gfile.copy(
                    os.path.join(directory, name), os.path.join(copy, name)
                )
            # TMPDIR may be such a path, too.
            with without_pattern(copy) as path:
                yield path
    elif os.path.isdir(_OPEN_FILES):
        # Its name is a number, and nothing has to be written.
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield f"{_OPEN_FILES}/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        # Without /proc, as on macOS, it takes a link.
        with tempfile.TemporaryDirectory() as folder:
            link = os.path.join(folder, "link")
            os.symlink(os.path.abspath(directory), link)
            yield link
