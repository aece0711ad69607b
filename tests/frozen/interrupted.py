"""Runs that were left in the middle of an epoch, kept to be gone on with.

    python -m tests.frozen.interrupted

makes those of `RUNS` whose folder below `interrupted/` is missing. One that is
there is never made anew: a later version must go on with it as it is. What
may be added is a run of a later version, beside it.
"""

import json
import pathlib
import shutil
import socket
import sys
import tempfile

import numpy as np

from tests.frozen import matrix, running
from tests.frozen.numbers import Frozen, measured

FOLDER = pathlib.Path(__file__).resolve().parent / "interrupted"
STEP, END = 13, 30
EVERYTHING = f"--gin_file={running.ROOT}/tests/frozen/everything.gin"

# By name the strategy, and the option of `matrix` that the run was started
# with; `everything` has a gin file of its own, and leaves by itself. The others
# were runs of fewer steps, whose last one is logged: only in `everything` are
# lines those of a run that nobody disturbed.
RUNS = {
    "default": ("default", "dropout"),
    "mirrored_2": ("mirrored:2", "guard"),
    "multi_worker_mirrored_2": ("multi_worker_mirrored@2", "accumulation"),
    "parameter_server_1_1": ("parameter_server@1+1", "averages"),
    "everything": ("default", None),
}
# Of a run directory, what is not needed to go on, or tells of its machine.
_LEFT_OUT = ("logs", "tensorboard", "operative_config.gin")


def flags(name):
    """The flags that the run has had, but for where it stopped."""
    strategy, option = RUNS[name]
    if option is None:
        return (EVERYTHING,)
    return matrix.flags(f"{strategy}/{option}")


def tolerance(name):
    """See `matrix.TOLERANCE`."""
    option = RUNS[name][1]
    if option is None:
        return matrix.FLOAT16_TOLERANCE
    return matrix.TOLERANCE


def make(name, folder):
    """Starts a run, and ends it at `STEP`."""
    strategy, option = RUNS[name]
    # `everything` leaves by itself.
    stop = (f"--train_steps={STEP}", "--mode=train") if option else ()
    folder.mkdir(parents=True)
    found = running.run(strategy, folder / name, *flags(name), *stop)
    assert found.code == (0 if option else 75), found.stderr
    assert running.steps(found.model_dir)[-1] == STEP
    for left_out in _LEFT_OUT:
        path = found.model_dir / left_out
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    _anonymize(found.model_dir / "run.json")
    for path in found.model_dir.rglob("*"):
        assert path.is_dir() or not _tells(path.read_bytes()), path
    shutil.copytree(found.model_dir, FOLDER / name)


def _anonymize(path):
    record = json.loads(path.read_text())
    record |= {
        "hosts": ["host"],
        "executable": "python",
        "platform": "Linux",
        "command": record["command"].replace(f"{running.ROOT}/", ""),
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


def _tells(content):
    """Whether a file names this machine."""
    names = (str(running.ROOT), socket.gethostname(), tempfile.gettempdir())
    return any(name.encode() in content for name in names)


def resume(name, folder):
    """Goes on with a copy of a kept run, to the end."""
    model_dir = folder / name
    shutil.copytree(FOLDER / name, model_dir)
    return running.run(RUNS[name][0], model_dir, *flags(name))


def undisturbed(frozen, name, folder):
    """The weights of the run as it would have been without a stop."""
    strategy, option = RUNS[name]
    if option is not None:
        return frozen.vectors[f"{strategy}/{option}"]
    stay = "--gin.LeaveAt.step=1000"
    found = running.run(strategy, folder / "whole", *flags(name), stay)
    assert found.code == 0, found.stderr
    return measured(found.model_dir)[1]


def main():
    frozen = Frozen.read()
    if frozen.differing_facts:
        sys.exit(f"Not on this machine. {frozen.differing_facts}")
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if not (FOLDER / name).exists():
                make(name, folder / "made")
            if f"interrupted/{name}" in frozen.runs:
                continue
            found = resume(name, folder)
            assert found.code == 0, found.stderr
            frozen.freeze(f"interrupted/{name}", found.model_dir)
            # Not bytes: its first steps may have been another machine's.
            np.testing.assert_allclose(
                frozen.vectors[f"interrupted/{name}"],
                undisturbed(frozen, name, folder),
                rtol=tolerance(name),
                atol=tolerance(name),
            )
            frozen.write()
            print(name, frozen.runs[f"interrupted/{name}"]["sha256"])


if __name__ == "__main__":
    main()
