"""Streams, directories and limits that a process may find itself with."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys

import pytest

from tests.trainer.cli.tiny import HERE, TINY

pytestmark = pytest.mark.usefixtures("plain_starts")
# Prints much more than a pipe holds.
CODE = """
import gin
import keras


@gin.configurable
class Prints(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        for number in range(20_000):
            print("a line", number)
"""
CALLBACKS = "run.callbacks = [@Prints(), @Progress(), @Checkpoint()]\n"


@pytest.fixture
def shell(tmp_path):
    """Runs a line of the shell, in which `$TRAINER` trains."""
    (tmp_path / "prints.py").write_text(CODE)
    (tmp_path / "tiny.gin").write_text(f"import prints\n{TINY}{CALLBACKS}")
    command = shlex.join(
        [sys.executable, "-m", "trainer", "--gin_file=tiny.gin"]
    )

    def run(line):
        return subprocess.run(
            ["bash", "-c", f"TRAINER='{command}'; set -o pipefail; {line}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": HERE},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def assert_trained(folder):
    record = json.loads((folder / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert (folder / "checkpoints" / "step_00000008").is_dir()


@pytest.mark.long
@pytest.mark.parametrize(
    "streams", ["| head -1", "> /dev/full", ">&-", "<&- >&- 2>&-"]
)
def test_training_outlives_its_streams(shell, tmp_path, streams):
    done = shell(f"$TRAINER --model_dir=run {streams}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert_trained(tmp_path / "run")
    if streams == "> /dev/full":
        assert "No space left on device" in done.stderr


@pytest.mark.long
def test_a_log_that_grows_too_large(shell, tmp_path):
    """The limit is that of `ulimit -f`, here of 200 KiB."""
    done = shell("ulimit -f 200; $TRAINER --model_dir=run > log")
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stderr
    assert_trained(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("streams", ["> /dev/full", "| head -1", ">&-"])
def test_results_that_cannot_be_printed(shell, streams):
    done = shell(f"$TRAINER --mode=print_config {streams}")
    if streams == "> /dev/full":
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")
    else:
        assert done.returncode == 0
        assert done.stderr == ""


def test_a_terminal_that_is_closed(shell, tmp_path):
    """The kernel sends SIGHUP, and every further output fails."""
    (tmp_path / "tiny.gin").write_text(
        f"import prints\n{TINY}run.callbacks = "
        "[@Preemption(), @Progress(), @Checkpoint()]\n"
    )
    command = [sys.executable, "-m", "trainer", "--gin_file=tiny.gin"]
    pid, terminal = pty.fork()
    if pid == 0:
        # Where the tests run under nohup it is ignored.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.chdir(tmp_path)
        os.environ["PYTHONPATH"] = HERE
        arguments = ["--model_dir=run", "--train_steps=100000000"]
        arguments.append("--jit_compile=graph")
        os.execv(sys.executable, [*command, *arguments])
    shown = b""
    while b"step" not in shown and b"loss" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 75, shown
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"] == "start_again"
    assert "SIGHUP" in record["exit_message"]
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))


def test_a_working_directory_that_was_deleted(shell):
    done = shell(
        "mkdir gone && cd gone && rmdir ../gone && PYTHONPATH= "
        "$TRAINER --model_dir=/tmp/none"
    )
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: The working directory")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--model_dir", "--gin.Trainer.data_dir"])
def test_what_is_not_utf_8(shell, flag):
    done = shell(f"$TRAINER {flag}=$'a\\xff'")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "not valid UTF-8" in line
    assert flag in line


@pytest.mark.long
def test_a_checkpoint_that_is_too_large(shell, tmp_path):
    """RLIMIT_FSIZE: a failed save is a warning, but the last one must work."""
    model = """
import gin
import keras


@gin.configurable
def wide():
    layers = [keras.layers.Dense(40_000), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers])
"""
    (tmp_path / "wide_code.py").write_text(model)
    (tmp_path / "tiny.gin").write_text(
        f"import wide_code\n{TINY}Trainer.model = @wide\n"
        "run.callbacks = [@Checkpoint()]\n"
    )
    done = shell("ulimit -f 100; $TRAINER --model_dir=run")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "too large" in done.stderr.splitlines()[-1], done.stderr
