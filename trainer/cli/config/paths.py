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
from collections.abc import Iterator, Mapping, Sequence

from trainer.errors import UserError, did_you_mean
from trainer.runtime import files
from trainer.runtime.files import is_local
from trainer.runtime.import_tensorflow import load_tensorflow

GROUP = "trainer.gin_files"


def locate(
    path: str,
    search_path: Sequence[str],
    *,
    folder: str = "",
    included_by: str = "",
) -> str:
    """Returns the path of a gin file.

    Args:
        path: as given.
        search_path: the folders of `--gin_search_path`.
        folder: the folder of the including file, if there is one.
        included_by: the place of the include, if it is one.

    Raises:
        UserError: there is no such file.
    """
    if not is_local(path) or os.path.isabs(path):
        candidates = [path]
    else:
        folders = [folder, "", *search_path]
        candidates = [os.path.join(one, path) for one in folders]
        candidates += _installed(path)
    for candidate in candidates:
        if _is_gin_file(candidate):
            return candidate
    raise _missing(candidates[0], included_by)


def read(path: str) -> str:
    """Reads a gin file, which may be remote.

    Raises:
        UserError: it cannot be read, or is not text.
    """
    try:
        return files.read(path).decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a gin file: it is not text.") from None


def _is_gin_file(path: str) -> bool:
    if is_local(path):
        return os.path.isfile(path)
    load_tensorflow()
    try:
        return files.exists(path) and not files.is_directory(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _missing(path: str, included_by: str) -> UserError:
    where = f"{included_by}: " if included_by else ""
    if os.path.isdir(path):
        return UserError(f"{where}{path} is a directory, not a gin file.")
    hint = did_you_mean(path, _known(path)) if is_local(path) else ""
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
