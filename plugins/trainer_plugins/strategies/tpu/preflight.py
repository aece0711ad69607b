"""Checks a TPU VM before a run.

    python -m trainer_plugins.strategies.tpu.preflight [--model_dir=gs://...]

It prints a line for each thing that it has looked at, and touches no chip. The
exit code is 0 if a run could start, and 2 otherwise.
"""

import argparse
import importlib.metadata
import os
import platform
import sys
import uuid
from collections.abc import Iterator, Sequence

from trainer import UserError
from trainer.plugin_api import files
from trainer_plugins.strategies.tpu.host import (
    default_tpu,
    holders,
    local_chips,
    require_tpu,
)

_PROJECT = "keras-trainer-plugins"
_TENSORFLOW = ("tensorflow-tpu", "tensorflow", "tensorflow-cpu")
# With these, tensorflow-tpu 2.20.0 can be imported; later ones lack functions
# that it calls, and end the process. The extra `tpu` has the first.
OLDEST_LIBTPU, NEWEST_LIBTPU = "0.0.14", "0.0.31"

Finding = tuple[bool, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what it finds; returns the exit code."""
    parser = argparse.ArgumentParser(description="Checks a TPU VM.")
    parser.add_argument("--tpu", default=default_tpu(), help="as of a run")
    parser.add_argument("--model_dir", help="as of a run")
    given = parser.parse_args(arguments)
    # Importing TensorFlow would take the chips.
    os.environ["TPU_LOAD_LIBRARY"] = "0"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    found = [*versions(), *chips(given.tpu)]
    if given.model_dir is not None:
        # A wrong libtpu ends the process when TensorFlow is imported.
        if all(is_good for is_good, _ in found[:3]):
            found.append(writable(given.model_dir))
        else:
            found.append((False, f"{given.model_dir} has not been tried"))
    for is_good, line in found:
        sys.stdout.write(f"{'ok  ' if is_good else 'BAD '} {line}\n")
    return 0 if all(is_good for is_good, _ in found) else 2


def versions() -> Iterator[Finding]:
    """Python, TensorFlow and libtpu."""
    yield True, f"Python {platform.python_version()}"
    installed = [name for name in _TENSORFLOW if _version(name)]
    shown = ", ".join(f"{name} {_version(name)}" for name in installed)
    if installed == ["tensorflow-tpu"]:
        yield True, shown
    else:
        yield (
            False,
            f"{shown or 'no TensorFlow'}: a TPU needs tensorflow-tpu, and no "
            "other TensorFlow beside it. In a new environment: pip install "
            f"'{_PROJECT}[tpu]'",
        )
    libtpu = _version("libtpu")
    first, last = _numbers(OLDEST_LIBTPU), _numbers(NEWEST_LIBTPU)
    if libtpu and first <= _numbers(libtpu)[:3] <= last:
        yield True, f"libtpu {libtpu}"
    else:
        yield (
            False,
            f"libtpu {libtpu or 'is not installed'}: tensorflow-tpu 2.20 works "
            f"with {OLDEST_LIBTPU} to {NEWEST_LIBTPU}, and with a later one "
            f"ends the process. pip install libtpu=={OLDEST_LIBTPU}",
        )


def chips(tpu: str) -> Iterator[Finding]:
    """The TPU, and who uses it."""
    try:
        require_tpu(tpu)
    except UserError as error:
        yield False, str(error).splitlines()[0]
        return
    shown = f": {', '.join(local_chips())}" if tpu == "local" else ""
    yield True, f"TPU {tpu}{shown}"
    in_use = holders() if tpu == "local" else []
    yield not in_use, f"in use by {in_use[0] if in_use else 'nobody'}"


def writable(model_dir: str) -> Finding:
    """Whether a file can be written, listed, read and removed again."""
    path = os.path.join(model_dir, f".preflight-{uuid.uuid4().hex}")
    try:
        files.make_directory(model_dir)
        files.write_whole(path, "preflight")
        is_same = files.read(path) == b"preflight"
        is_listed = os.path.basename(path) in files.listing(model_dir)
        files.remove(path)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        return False, f"{model_dir} cannot be written: {reason}"
    if not (is_same and is_listed):
        return False, f"{model_dir} does not give back what is written there"
    return True, f"{model_dir} can be written"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


if __name__ == "__main__":
    sys.exit(main())
