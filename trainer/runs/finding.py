"""Finds the run directories below a folder."""

import os
from collections.abc import Callable
from typing import NamedTuple

from trainer.errors import UserError, did_you_mean
from trainer.runtime.files import is_local

# Any of these makes a folder a run directory.
_FILES = {"run.json", "run.lock", "metrics.jsonl", "operative_config.gin"}
# What a run itself creates holds no other run.
_PARTS = {"checkpoints", "tensorboard", "best", "export", "logs"}


class Found(NamedTuple):
    """What is below a folder.

    Attributes:
        runs: path by name, the path below the folder.
        empty: names of folders that hold neither a run nor folders.
        notes: sentences on what cannot be read.
    """

    runs: dict[str, str]
    empty: list[str]
    notes: list[str]


def find(directory: str) -> Found:
    """Finds all runs in a folder, or the one that it is.

    Raises:
        UserError: there is no such local folder.
    """
    if not is_local(directory):
        raise UserError(
            f"{directory} is not a local folder. Copy the runs here first; "
            "their checkpoints are not needed."
        )
    if not os.path.isdir(directory):
        parent, name = os.path.split(os.path.normpath(directory))
        there = os.path.isdir(parent or ".")
        names = os.listdir(parent or ".") if there else []
        hint = did_you_mean(name, names, prefix=parent and f"{parent}/")
        raise UserError(f"There is no folder {directory}.{hint}")
    found = Found({}, [], [])
    seen = set()
    walk = os.walk(
        directory, followlinks=True, onerror=_noting(found.notes, directory)
    )
    for path, folders, files in walk:
        real = os.path.realpath(path)
        # A link may lead back up.
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        is_run = _is_run(path, folders, files)
        name = _name(path, directory)
        if is_run:
            found.runs[name] = path
        elif not folders and path != directory:
            found.empty.append(name)
        folders[:] = sorted(
            folder
            for folder in folders
            if not folder.startswith((".", "__"))
            and not (is_run and folder in _PARTS)
        )
    return found


def _is_run(path: str, folders: list[str], files: list[str]) -> bool:
    # Something else in place of a file is part of a damaged run.
    if _FILES.intersection([*files, *folders]):
        return True
    # Many programs have a folder of this name.
    if "checkpoints" not in folders:
        return False
    try:
        names = os.listdir(os.path.join(path, "checkpoints"))
    except OSError:
        return False
    return any(newest_step([name]) is not None for name in names)


def newest_step(names: list[str]) -> int | None:
    """The step of the newest of some checkpoints, by their names."""
    numbers = [name.removeprefix("step_") for name in names if "step_" in name]
    return max((int(n) for n in numbers if n.isdecimal()), default=None)


def _name(path: str, directory: str) -> str:
    name = os.path.relpath(path, directory)
    return os.path.basename(os.path.abspath(path)) if name == "." else name


def _noting(notes: list[str], directory: str) -> Callable[[OSError], None]:
    def note(error: OSError) -> None:
        name = _name(os.fsdecode(error.filename or directory), directory)
        notes.append(f"{name} cannot be read: {error.strerror}.")

    return note
