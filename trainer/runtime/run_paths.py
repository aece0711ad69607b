"""A run directory: where it may be, what may be in it, and whether it is done.

A path that no run can use is rejected with an error message. Nothing here
imports TensorFlow where the run directory is local.
"""

import contextlib
import errno
import os
import re
import time
from typing import Any

from trainer.errors import UserError
from trainer.runtime import files
from trainer.runtime.files import is_local

# A checkpoint's, and its number of steps.
CHECKPOINT_NAME = re.compile(r"step_(\d{8,})(\.old)?")
# Room for the longest name below a run directory.
_BELOW = "x" * 240
# By then a training process that starts together with the evaluator, and first
# imports TensorFlow and builds its graphs, has replaced an older run.json.
_START_SECONDS = 60.0


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
    try:
        path.encode()
        whole = os.path.abspath(path)
        # Not compared with os.sep: `abspath` leaves two slashes as they are.
        if whole.strip(os.sep):
            os.lstat(os.path.join(whole, _BELOW))
            return
        why = "is the root of the file system"
    # Python can hold file names that are not UTF-8 as surrogates.
    except UnicodeError:
        why = "is not valid UTF-8, which TensorFlow needs"
    except ValueError:
        why = "contains a NUL character"
    except NotADirectoryError:
        why = "leads through a file"
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            return
        why = "is too long"
    shown = ascii(path if len(path) < 200 else f"{path[:200]}...")
    raise UserError(f"model_dir {shown} {why}. Choose another --model_dir.")


def refuse_links(directory: str, name: str) -> None:
    """Refuses a run directory with a link where the run is going to write.

    Args:
        directory: the run directory; it may be a link itself.
        name: the file or folder to write, such as `"checkpoints"`.

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
    if is_local(path) and os.path.exists(path) and not os.path.isfile(path):
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


def newest_step(path: str) -> int:
    """The step of a run's newest checkpoint by its name; 0 without one."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = files.listing(os.path.join(path, "checkpoints"))
    found = map(CHECKPOINT_NAME.fullmatch, names)
    return max((int(one[1]) for one in found if one), default=0)


class RunIsOver:
    """Reads `run.json`, which the training process writes.

    A record from before this process counts only after a delay, because the
    run may be about to continue with more steps.

    Args:
        path: the run directory; it need not exist yet.
        start_seconds: the delay.
    """

    def __init__(
        self, path: str, *, start_seconds: float = _START_SECONDS
    ) -> None:
        self._path = os.path.join(path, "run.json")
        self._trust_after = time.monotonic() + start_seconds
        # Compared as a whole, since a later attempt differs at least in
        # `start`.
        self._first = self._read()

    def __call__(self) -> bool:
        """Whether the run has ended well and is not about to continue."""
        record = self._read()
        if record.get("exit_reason") != "done":
            return False
        return record != self._first or time.monotonic() >= self._trust_after

    def _read(self) -> dict[str, Any]:
        """Returns the record; empty if it cannot be read at the moment."""
        with contextlib.suppress(OSError):
            return files.read_record(self._path)
        return {}
