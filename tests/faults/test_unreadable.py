"""Files of a run that are there, and cannot be read when it goes on.

A library that is loaded first lets the opening of a path fail, as a network
disk does for a while.
"""

import errno
import hashlib
import os
import pathlib
import shutil
import subprocess

import pytest

from tests.sets import ordinary

SOURCE = pathlib.Path(__file__).with_name("faulty.c")
# Where opening fails, how, and the exit code.
UNREADABLE = [
    ("arrays.data", errno.EIO, 75),
    ("arrays.index", errno.ESTALE, 75),
    ("manifest.json", errno.EIO, 75),
    ("state.json", errno.ESTALE, 75),
    ("run/checkpoints", errno.EIO, 75),
    ("step_00000", errno.EACCES, 2),
    ("skipped_batches.json", errno.EIO, 75),
    ("run.json", errno.EIO, 75),
    ("config.gin", errno.ESTALE, 75),
    ("run.lock", errno.ESTALE, 75),
]
# Each starts a process without the help of `tests.starts`, which takes longer.
CHOSEN = UNREADABLE[:1]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A library that lets paths with FAULTY_PATH in them fail."""
    made = tmp_path_factory.mktemp("faulty") / "faulty.so"
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    command = ["cc", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(made)}


def contents(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).digest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def begun(runs, undisturbed):
    """A run with three checkpoints that has more steps to make."""
    shutil.copytree(undisturbed(), runs.model_dir)
    (runs.model_dir / "skipped_batches.json").write_text('{"skipped": []}')
    return runs


def go_on(runs, *flags, environ=None):
    """Starts the run once more, for longer than it was."""
    return runs.train("--train_steps=30", *flags, environ=environ)


@pytest.mark.parametrize(
    ("path", "number", "code"), ordinary(UNREADABLE, CHOSEN)
)
def test_what_cannot_be_read_is_not_absent(begun, faulty, path, number, code):
    before = contents(begun.model_dir)
    faults = {"FAULTY_PATH": path, "FAULTY_ERRNO": str(number)}
    process = go_on(begun, environ=faulty | faults)
    process.must_end(code)
    assert os.strerror(number) in process.log
    assert "Traceback" not in process.log
    assert contents(begun.model_dir) == before
