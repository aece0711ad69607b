"""Finds gin files.

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

from trainer.cli.config.suggest import did_you_mean
from trainer.errors import UserError

GROUP = "trainer.gin_files"


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL such as `gs://bucket/file`."""
    return "://" in path


def locate(path: str, search_path: Sequence[str]) -> str:
    """Returns the path of a gin file from the command line.

    Args:
        path: as given. A remote path is returned unchecked, because checking
            needs TensorFlow.
        search_path: the folders of `--gin_search_path`.

    Raises:
        UserError: there is no such file.
    """
    for candidate in candidates(path, search_path=search_path):
        if is_remote(candidate) or os.path.isfile(candidate):
            return candidate
    raise missing(path)


def candidates(
    path: str, *, folder: str = "", search_path: Sequence[str] = ()
) -> list[str]:
    """Returns the paths where a gin file may be, in order of precedence.

    Args:
        path: as given.
        folder: the folder of the including file, if there is one.
        search_path: the folders of `--gin_search_path`.
    """
    if is_remote(path) or os.path.isabs(path):
        return [path]
    folders = [folder, "", *search_path]
    found = [os.path.join(one, path) for one in folders]
    # Without duplicates, but in order: the current folder may be listed twice.
    return list(dict.fromkeys([*found, *_installed(path)]))


def missing(path: str, *, included_by: str = "") -> UserError:
    """Returns the error for a missing gin file.

    Args:
        path: as given.
        included_by: the place of the include, if it is one.
    """
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
