"""Paths of a run directory: what no run can use is refused in a sentence."""

import os

from trainer.errors import UserError
from trainer.runtime import files
from trainer.runtime.files import is_local

# The limits of Linux, and room for the longest name below a run directory.
_PATH_BYTES = 4096
_NAME_BYTES = 255
_ROOM_BYTES = 256


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
    shown = ascii(path if len(path) < 200 else f"{path[:200]}...")
    try:
        encoded = os.fsencode(os.path.abspath(path))
        # Python can hold file names that are not UTF-8 as surrogates.
        path.encode()
    except UnicodeError:
        raise UserError(
            f"model_dir {shown} is not valid UTF-8, which TensorFlow needs. "
            "Choose another --model_dir."
        ) from None
    if b"\0" in encoded:
        raise UserError(f"model_dir {shown} contains a NUL character.")
    longest = max(map(len, encoded.split(b"/")))
    if longest > _NAME_BYTES or len(encoded) > _PATH_BYTES - _ROOM_BYTES:
        raise UserError(
            f"model_dir {shown} is too long: {len(encoded)} bytes, and "
            f"{longest} in one name. The limits are "
            f"{_PATH_BYTES - _ROOM_BYTES} and {_NAME_BYTES}."
        )


def refuse_files(path: str) -> None:
    """Refuses a run directory that is a file, or leads through one.

    Raises:
        UserError: it does. Whether a path that is not local does is not known.
    """
    whole = os.path.abspath(path) if is_local(path) else ""
    found = whole
    while found and found != os.path.dirname(found):
        if os.path.exists(found) and not os.path.isdir(found):
            shown = (
                "is a file" if found == whole else f"lies below a file, {found}"
            )
            raise UserError(f"model_dir {path} {shown}. Name a directory.")
        found = os.path.dirname(found)


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
