"""Finds and reads gin files.

A relative path is searched for in the current folder (or next to the file that
includes it), then in the folders of `--gin_search_path`, then among the gin
files of installed packages. A package provides a folder of them through the
entry point group `trainer.gin_files`. The entry point's name stands for the
folder in a path such as `experiments/digits.gin`.
"""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from trainer.errors import UserError, did_you_mean
from trainer.runtime.import_tensorflow import load_tensorflow

GROUP = "trainer.gin_files"


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL such as `gs://bucket/file`."""
    return "://" in path


def locate(
    path: str,
    search_path: Sequence[str],
    *,
    folder: str = "",
    included_by: str = "",
) -> str:
    """Returns the path of a gin file.

    Args:
        path: as given. A remote path is not checked before TensorFlow is
            imported, which that would need.
        search_path: the folders of `--gin_search_path`.
        folder: the folder of the including file, if there is one.
        included_by: the place of the include, if it is one.

    Raises:
        UserError: there is no such file.
    """
    if is_remote(path) or os.path.isabs(path):
        candidates = [path]
    else:
        folders = [folder, "", *search_path]
        candidates = [os.path.join(one, path) for one in folders]
        candidates += _installed(path)
    for candidate in candidates:
        if _is_file(candidate):
            return candidate
    raise _missing(candidates[0], included_by)


def read(path: str, *, included_by: str = "") -> str:
    """Reads a gin file, which may be remote.

    Raises:
        UserError: it is missing, or not text.
    """
    try:
        if is_remote(path):
            return _read_remote(path, included_by).decode()
        if not os.path.exists(path) or os.path.isdir(path):
            raise _missing(path, included_by)
        with open(path, "rb") as file:
            return file.read().decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a gin file: it is not text.") from None


def _read_remote(path: str, included_by: str) -> bytes:
    load_tensorflow()
    import tensorflow as tf

    try:
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            raise _missing(path, included_by)
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read())
    except tf.errors.OpError as error:
        raise OSError(str(error)) from None


def _is_file(path: str) -> bool:
    if not is_remote(path):
        return os.path.isfile(path)
    gfile = "tensorflow" in sys.modules and sys.modules["tensorflow"].io.gfile
    return not gfile or (gfile.exists(path) and not gfile.isdir(path))


def _missing(path: str, included_by: str) -> UserError:
    where = f"{included_by}: " if included_by else ""
    if os.path.isdir(path):
        return UserError(f"{where}{path} is a directory, not a gin file.")
    hint = "" if is_remote(path) else did_you_mean(path, _known(path))
    return UserError(f"{where}No such gin file: {path}.{hint}")


def _known(path: str) -> Iterator[str]:
    """Yields the gin files in a path's folder and in installed packages."""
    folder = os.path.dirname(path)
    for name in _gin_files(folder or "."):
        yield os.path.join(folder, name)
    for package, home in _installed_folders().items():
        for name in _gin_files(home):
            yield f"{package}/{name}"


def _gin_files(folder: str) -> list[str]:
    if not os.path.isdir(folder):
        return []
    return [name for name in os.listdir(folder) if name.endswith(".gin")]


def _installed(path: str) -> Iterator[str]:
    root, _, rest = path.replace(os.sep, "/").partition("/")
    for package, folder in _installed_folders().items():
        if root == package and rest:
            yield os.path.join(folder, rest)
        # Also without the prefix: `digits.gin` is enough if it is unique.
        yield os.path.join(folder, path)


@functools.cache
def _installed_folders() -> Mapping[str, str]:
    """Returns the folders of gin files in packages, by entry point."""
    return {
        entry.name: str(entry.load())
        for entry in importlib.metadata.entry_points(group=GROUP)
    }
