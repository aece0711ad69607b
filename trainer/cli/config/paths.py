"""Finds gin files.

A relative path is looked for where the user is (or beside the file that
includes it), then in the folders of `--gin_search_path`, then among the gin
files of installed packages. A package offers a folder of them through the
entry point group `trainer.gin_files`, under the name that stands for the
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
    """Whether a path is an address such as `gs://bucket/file`."""
    return "://" in path


def locate(path: str, search_path: Sequence[str]) -> str:
    """Where a gin file of the command line is, without TensorFlow.

    Args:
        path: as the user wrote it. What is remote is not looked for.
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
    """Where a gin file may be, the best place first.

    Args:
        path: as it was written.
        folder: where the including file is, if one includes it.
        search_path: the folders of `--gin_search_path`.
    """
    if is_remote(path) or os.path.isabs(path):
        return [path]
    folders = [folder, "", *search_path]
    found = [os.path.join(one, path) for one in folders]
    return list(dict.fromkeys([*found, *_installed(path)]))


def missing(path: str, *, included_by: str = "") -> UserError:
    """The error for a gin file that is not there.

    Args:
        path: what was asked for.
        included_by: where the include stands, if it is one.
    """
    where = f"{included_by}: " if included_by else ""
    if os.path.isdir(path):
        return UserError(f"{where}{path} is a directory, not a gin file.")
    hint = "" if is_remote(path) else did_you_mean(path, _known(path))
    return UserError(f"{where}No such gin file: {path}.{hint}")


def _known(path: str) -> Iterator[str]:
    """The gin files in a path's folder, and those of installed packages."""
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
        yield os.path.join(folder, path)


@functools.cache
def _installed_folders() -> Mapping[str, str]:
    """By entry point, the folders of gin files that packages offer."""
    return {
        entry.name: str(entry.load())
        for entry in importlib.metadata.entry_points(group=GROUP)
    }
