"""The provenance of a run: versions, git commit, time."""

import datetime
import importlib.metadata
import platform
import subprocess
from typing import Any

# TensorFlow comes in several packages that provide the same module.
_PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-tpu"),
    "keras": ("keras",),
    "gin": ("gin-config",),
    "trainer": ("keras-trainer-plugins",),
}
# git can hang on a dead network file system, and a run must not.
_GIT_SECONDS = 10.0


def now() -> str:
    """Returns the time in UTC, as ISO 8601 to the second."""
    time = datetime.datetime.now(datetime.UTC)
    return time.isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Returns the versions of Python and of the packages that matter."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, distributions in _PACKAGES.items():
        found[name] = next(filter(None, map(_version, distributions)), None)
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def git(directory: str = ".") -> dict[str, Any] | None:
    """Returns the git commit of a directory.

    Returns:
        `{"commit": hash, "dirty": whether tracked files differ}`, or `None`
        outside of a checkout or without git.
    """
    commit = _run_git(directory, "rev-parse", "HEAD")
    if not commit:
        return None
    # Without untracked files: listing them is slow in folders with data.
    changes = _run_git(directory, "status", "--porcelain", "-uno")
    return {"commit": commit, "dirty": bool(changes)}


def _run_git(directory: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", directory, *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
