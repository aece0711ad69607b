"""Paths of a run directory: what no run can use is refused in a sentence."""

import os

from trainer.errors import UserError
from trainer.runtime import files
from trainer.runtime.files import is_local

# The limits of Linux, with room for the longest name below a run directory.
_PATH_BYTES = 4096 - 256
_NAME_BYTES = 255


def plain(path: str) -> str:
    """A path without the prefix `file://`, which means the same."""
    return path.removeprefix("file://")


def check_path(path: str) -> None:
    """Refuses a run directory whose files could not be opened.

    Raises:
        UserError: TensorFlow or the file system cannot open such a path.
    """
    if not is_local(path):
        return
    why, encoded, found = "", os.path.abspath(path).encode(errors="replace"), ""
    try:
        # Python can hold file names that are not UTF-8 as surrogates.
        path.encode()
        found = os.path.abspath(path)
        while not os.path.exists(found):
            found = os.path.dirname(found)
    except UnicodeError:
        why = "is not valid UTF-8, which TensorFlow needs"
    if "\0" in path:
        why = "contains a NUL character"
    longest = max(map(len, encoded.split(b"/")))
    if longest > _NAME_BYTES or len(encoded) > _PATH_BYTES:
        why = f"is too long: {len(encoded)} bytes, {longest} in one name"
    if found and not why and not os.path.isdir(found):
        why = f"leads through {found}, which is a file"
    if why:
        shown = ascii(path if len(path) < 200 else f"{path[:200]}...")
        raise UserError(f"model_dir {shown} {why}. Choose another --model_dir.")


def refuse_links(directory: str, name: str) -> None:
    """Refuses a run directory with a link where the run is going to write.

    Args:
        directory: the run directory; it may be a link itself.
        name: the file or folder to write, such as `"tensorboard/eval"`.

    Raises:
        UserError: it or one of its parent folders is a symbolic link.
    """
    for path in _steps(directory, name):
        if os.path.islink(path):
            raise UserError(
                f"{path} is a symbolic link to {os.readlink(path)}, and a run "
                "writes nothing outside its own directory. Remove the link, "
                "or put the whole run there with --model_dir."
            )


def prepare_file(directory: str, name: str) -> None:
    """Makes sure that a run can write a file.

    Raises:
        UserError: it is a link, or something else that cannot be renamed.
    """
    refuse_links(directory, name)
    path = os.path.join(directory, name)
    if is_local(path) and os.path.exists(path) and not files.is_file(path):
        _set_aside(path, "it is not a regular file")


def prepare_directory(directory: str, name: str) -> None:
    """Makes sure that a run can create a directory.

    Raises:
        UserError: it is a link, or something else that cannot be renamed.
    """
    refuse_links(directory, name)
    for path in _steps(directory, name):
        if os.path.exists(path) and not os.path.isdir(path):
            _set_aside(path, "it is not a directory")


def _steps(directory: str, name: str) -> list[str]:
    """The local paths below a directory that lead to a name in it."""
    if not is_local(directory):
        return []
    parts = name.split("/")
    return [
        os.path.join(directory, *parts[:end])
        for end in range(1, len(parts) + 1)
    ]


def _set_aside(path: str, why: str) -> None:
    try:
        files.set_aside(path, why)
    except OSError as error:
        raise UserError(
            f"{path} cannot be used ({why}) and cannot be renamed: {error}"
        ) from None
