"""Short hashes of what must be the same in all processes of a run."""

import glob
import hashlib
import os
import re
import sys
import sysconfig

import gin

_DIGITS = 12
# What differs between the tasks of a cluster, or between hosts, by right;
# comments and empty lines come and go with it.
_OF_ONE_TASK = re.compile(
    r"^((\w+\.)*(run\.task_(index|type)|\w+\.data_dir) =|#|$)"
)
_PACKAGES = ("trainer", "plugins", "experiments")


def configuration() -> str:
    """A hash of the whole gin configuration.

    Which task a process is, and where it finds its data, does not count.
    """
    # Unbroken lines: a path may be long.
    lines = gin.config_str(max_line_length=1 << 20).splitlines()
    kept = [line for line in lines if not _OF_ONE_TASK.match(line)]
    return _hash("\n".join(kept).encode())


def code() -> str:
    """A hash of the sources of the framework and of the user's modules.

    The user's modules are those that were imported by now and lie outside of
    Python's own folders.
    """
    files = {os.path.realpath(path) for path in _own_modules()}
    for name in _PACKAGES:
        package = sys.modules.get(name)
        if package is not None and package.__file__ is not None:
            folder = os.path.dirname(os.path.realpath(package.__file__))
            files.update(_sources(folder))
    sources = []
    for path in files:
        try:
            with open(path, "rb") as file:
                sources.append(hashlib.sha256(file.read()).digest())
        except OSError:
            continue
    # Without their paths: hosts may keep the code in different places.
    return _hash(b"".join(sorted(sources)))


def _sources(folder: str) -> list[str]:
    # A checkout may lie in a folder whose name looks like a pattern.
    return glob.glob(f"{glob.escape(folder)}/**/*.py", recursive=True)


def _own_modules() -> list[str]:
    library = sysconfig.get_paths()["stdlib"]
    found = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if (
            isinstance(path, str)
            and path.endswith(".py")
            and not path.startswith(library)
            and "site-packages" not in path
            and "dist-packages" not in path
        ):
            found.append(path)
    return found


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
