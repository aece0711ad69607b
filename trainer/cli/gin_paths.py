"""Finds gin files: beside the file that includes them, or where we are."""

import os
from collections.abc import Iterable

from trainer.cli.suggest import did_you_mean
from trainer.errors import UserError


def is_remote(path: str) -> bool:
    """Whether a path is an address such as `gs://bucket/file`."""
    return "://" in path


def check_local(paths: Iterable[str]) -> None:
    """Refuses local files that are not there, without TensorFlow.

    Raises:
        UserError: one of them is missing.
    """
    for path in paths:
        if not is_remote(path) and not os.path.isfile(path):
            raise missing(path)


def missing(path: str, *, included_by: str = "") -> UserError:
    """The error for a gin file that is not there.

    Args:
        path: what was asked for.
        included_by: where the include stands, if it is one.
    """
    where = f"{included_by}: " if included_by else ""
    if os.path.isdir(path):
        return UserError(f"{where}{path} is a directory, not a gin file.")
    folder = os.path.dirname(path)
    if is_remote(path) or not os.path.isdir(folder or "."):
        return UserError(f"{where}No such gin file: {path}.")
    there = [
        os.path.join(folder, name)
        for name in os.listdir(folder or ".")
        if name.endswith(".gin")
    ]
    hint = did_you_mean(path, there)
    return UserError(f"{where}No such gin file: {path}.{hint}")


def candidates(path: str, *, folder: str) -> list[str]:
    """Where an included file may be, the best place first.

    Args:
        path: as it stands in the include line.
        folder: where the including file is.
    """
    if is_remote(path):
        return [path]
    return list(dict.fromkeys([os.path.join(folder, path), path]))
