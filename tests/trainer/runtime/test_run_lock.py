"""Two runs never write to one directory at once."""

import errno
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import keras
import pytest

from tests.helpers import linear, lines, make_trainer, saved_steps
from tests.sets import long
from trainer import UserError
from trainer.runtime import process_exit, run_lock
from trainer.runtime.run_lock import FILE_NAME, locked
from trainer_plugins import Checkpoint, JsonLines

HERE = pathlib.Path(__file__).parent


def train(model_dir, steps, *callbacks):
    make_trainer(linear).train(
        steps,
        model_dir=str(model_dir),
        callbacks=[JsonLines(), *callbacks, Checkpoint(every=2)],
        log_every=2,
        steps_per_loop=2,
    )


class During(keras.callbacks.Callback):
    """Calls a function once, in the middle of a run."""

    def __init__(self, function):
        super().__init__()
        self._function, self._is_called = function, False

    def on_train_batch_end(self, batch, logs=None):
        if not self._is_called:
            self._is_called = True
            self._function()


def holder_in(model_dir):
    return json.loads((model_dir / FILE_NAME).read_text())


def test_a_second_run_is_refused_and_the_first_goes_on(tmp_path):
    refused = []

    def second():
        holder = holder_in(tmp_path)
        with pytest.raises(UserError) as error:
            train(tmp_path, 20)
        refused.append((holder, str(error.value)))

    train(tmp_path, 8, During(second))
    ((holder, message),) = refused
    assert f"model_dir {tmp_path} is in use" in message
    assert holder["pid"] == os.getpid()
    assert holder["host"] == socket.gethostname()
    for key in ("pid", "host", "start"):
        assert str(holder[key]) in message
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 6, 8]
    assert saved_steps(tmp_path) == [4, 6, 8]
    # It is given back, and nothing is left of it.
    assert FILE_NAME not in os.listdir(tmp_path)
    train(tmp_path, 10)
    assert saved_steps(tmp_path)[-1] == 10


def trained(root, model_dir, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "trainer"]
        + [f"--gin_file={root}/experiments/digits.gin"]
        + [f"--model_dir={model_dir}", "--gin.run.log_every=100"]
        + [f"--gin.run.callbacks={CALLBACKS}", *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{root}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


CALLBACKS = "[@JsonLines(), @Export(), @Checkpoint()]"


def wait_for_checkpoint(model_dir, process):
    deadline = time.monotonic() + 300
    while not saved_steps(model_dir):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_processes(root, tmp_path):
    """One is refused; those that only read are not; a killed one is no bar."""
    first = trained(root, tmp_path, "--train_steps=1000000")
    try:
        wait_for_checkpoint(tmp_path, first)
        pid = holder_in(tmp_path)["pid"]
        second = trained(root, tmp_path, "--train_steps=50")
        reading = [
            trained(root, tmp_path, f"--mode={mode}")
            for mode in ("eval", "export")
        ]
        _, said = second.communicate(timeout=300)
        assert second.returncode == 2, said[-4000:]
        assert f"is in use: process {pid} on" in said
        assert "Traceback" not in said
        for process in reading:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said[-4000:]
        assert first.poll() is None
        assert json.loads((tmp_path / "run.json").read_text())["restarts"] == 0
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    (step, *_) = reversed(saved_steps(tmp_path))
    after = trained(root, tmp_path, f"--train_steps={step + 5}")
    _, said = after.communicate(timeout=300)
    assert after.returncode == 0, said[-4000:]


FORKS = """
import os, signal, sys, time
from trainer.runtime.run_lock import locked
with locked(sys.argv[1]):
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_outlives_its_run_is_no_bar(root, tmp_path):
    """Such as a worker process of user code that loads data."""
    done = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(done.stdout.readline())
    assert done.wait(60) == -signal.SIGKILL
    try:
        os.kill(child, 0)
        with locked(str(tmp_path)):
            assert holder_in(tmp_path)["pid"] == os.getpid()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "content",
    [b"", long(b"\xff"), long(b"[1]"), b"{" * 100_000, long(b'{"pid": []}')],
)
def test_what_a_dead_run_left_does_not_matter(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    with locked(str(tmp_path)):
        (tmp_path / FILE_NAME).write_bytes(content)
        with pytest.raises(UserError, match="in use"), locked(str(tmp_path)):
            pass


def test_a_link_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE_NAME).symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="symbolic link"):
        train(tmp_path / "run", 2)
    assert not (tmp_path / "victim").exists()


def test_many_at_once(tmp_path):
    """However they take turns, there is one at a time."""
    inside, most = [], []

    def enter():
        try:
            with locked(str(tmp_path)):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.02)
                inside.pop()
        except UserError:
            pass

    threads = [threading.Thread(target=enter) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert os.listdir(tmp_path) == []


# Without flock: leases.


@pytest.fixture
def quick(monkeypatch):
    for name, seconds in (
        ("_SETTLE_SECONDS", 0.2),
        ("_RENEW_SECONDS", 0.1),
        ("_LEASE_SECONDS", 1.0),
    ):
        monkeypatch.setattr(run_lock, name, seconds)
    monkeypatch.delenv(process_exit.LAUNCHER, raising=False)


@pytest.fixture
def lease_path(quick, request):
    return f"ram://leases/{request.node.name}"


def left_behind(path, **changes):
    """Writes the lease of a process that has died since."""
    with locked(path):
        record = json.loads(read(f"{path}/{FILE_NAME}"))
    write(path, json.dumps(record | {"host": "another"} | changes))


def read(path):
    import tensorflow as tf

    with tf.io.gfile.GFile(path) as file:
        return file.read()


def write(path, text):
    from trainer.runtime import files

    files.make_directory(path)
    files.write_whole(f"{path}/{FILE_NAME}", text)


def test_a_lease_that_is_renewed_keeps_others_out(lease_path, monkeypatch):
    # Longer than a busy machine may hold up the thread that renews it.
    monkeypatch.setattr(run_lock, "_LEASE_SECONDS", 10.0)
    write(lease_path, "no JSON")
    with locked(lease_path) as check:
        with pytest.raises(UserError) as error, locked(lease_path):
            pass
        assert f"process {os.getpid()} on {socket.gethostname()}" in str(
            error.value
        )
        check()
    with locked(lease_path):
        pass


def test_a_lease_that_is_not_renewed_is_taken_over(lease_path):
    left_behind(lease_path, renewed=time.time())
    began = time.monotonic()
    with locked(lease_path):
        assert 1.0 < time.monotonic() - began < 10


@pytest.mark.parametrize(
    "changes",
    [
        {"renewed": 0.0},
        {"renewed": "text"},
        {"launcher": "mine", "renewed": time.time()},
    ],
)
def test_one_that_is_known_to_be_dead_is_not_waited_for(
    lease_path, monkeypatch, changes
):
    left_behind(lease_path, **changes)
    monkeypatch.setattr(run_lock, "_LEASE_SECONDS", 60.0)
    monkeypatch.setenv(process_exit.LAUNCHER, "mine")
    began = time.monotonic()
    with locked(lease_path):
        assert time.monotonic() - began < 10


def test_a_run_that_loses_its_lease_ends(quick):
    model_dir = "ram://lost/run"

    def steal():
        record = json.loads(read(f"{model_dir}/{FILE_NAME}"))
        record |= {"nonce": "other", "host": "thief"}
        write(model_dir, json.dumps(record))
        time.sleep(1.0)

    with pytest.raises(UserError, match="on thief"):
        train(model_dir, 100, During(steal))


def test_a_file_system_without_flock(tmp_path, quick, monkeypatch, caplog):
    """As some network disks are; there is none here."""

    def none(descriptor, operation):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(str(tmp_path)):
        assert "the file system has no locks" in caplog.text
        with pytest.raises(UserError, match="in use"), locked(str(tmp_path)):
            pass
    assert os.listdir(tmp_path) == []
