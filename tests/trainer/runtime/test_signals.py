"""Real processes and real signals, from the first line to the last."""

import functools
import multiprocessing
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.faults import reading
from tests.faults.runs import Runs, wait_for
from tests.helpers import make_trainer
from trainer.runtime import signals
from trainer_plugins import Preemption

PAIR = {"worker": 2}
NAMES = ("worker_0", "worker_1")
# Longer than anything here takes.
LATE = "--gin.MultiWorkerMirrored.start_seconds=100.0"
# Where the tests run under nohup SIGHUP is ignored.
START = """
import signal, os, subprocess, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
BOTH = pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])


@pytest.fixture
def runs(tmp_path):
    made = Runs(tmp_path)
    yield made
    made.end()


def mask(pid, name="SigBlk"):
    """Whether a process's main thread blocks SIGTERM, or another set."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    bits = int(re.search(rf"^{name}:\s*(\w+)$", text, re.M)[1], 16)
    return bool(bits >> (signal.SIGTERM - 1) & 1)


def must_leave(process, *, seconds=60):
    """It ends with 75, in order, and says why in its last sentence."""
    process.must_end(75, seconds=seconds)
    assert "Traceback" not in process.log
    assert "most recent call" not in process.log
    return process.sentence("start again:", "SIGTERM")


@pytest.mark.usefixtures("plain_starts")
def test_sigterm_before_tensorflow_is_imported_ends_it_at_once(runs):
    # On a busy machine the import may have begun before this process looks.
    for _ in range(5):
        process = runs.train()
        wait_for(functools.partial(mask, process.pid), "the first line")
        begin = time.monotonic()
        process.signal(signal.SIGTERM)
        libraries = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        must_leave(process)
        if "libtensorflow" not in libraries:
            break
    assert "libtensorflow" not in libraries
    assert time.monotonic() - begin < 10


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("there", NAMES)
def test_sigterm_while_a_peer_is_waited_for_ends_it_at_once(runs, there):
    tasks = runs.tasks(LATE, start=[there], **PAIR)
    first = runs.ports[tuple(PAIR.items())]["worker"][0]
    port = int(first.split(":")[1]) + 30
    if there == "worker_0":
        wait_for(lambda: listens(port), "the coordinator")
    else:
        with socket.create_server(("127.0.0.1", port)) as coordinator:
            coordinator.settimeout(60)
            coordinator.accept()[0].close()
    time.sleep(0.5)
    begin = time.monotonic()
    tasks[there].signal(signal.SIGTERM)
    must_leave(tasks[there])
    assert time.monotonic() - begin < 10
    assert reading.checkpoints(runs.model_dir) == {}


@pytest.mark.parametrize("place", ["connecting", "connected"])
def test_sigterm_while_tensorflow_connects_is_not_lost(runs, place):
    """It has a handler of its own by then, which does nothing."""
    environ = {}
    if place == "connected":
        environ = {"worker_1": {"SIGNAL_CODE": "connected"}}
    else:
        runs.plan("worker_0 connect 0 hold")
    tasks = runs.tasks(LATE, *flags(), environ=environ, **PAIR)
    if place == "connecting":
        tasks["worker_0"].wait_for(lambda: runs.is_held("worker_0"), "hold")
        wait_for(lambda: runs.phase("worker_1")[0] == "connect", "worker 1")
        # It is inside TensorFlow's own function, which nothing interrupts.
        time.sleep(2.0)
        tasks["worker_1"].signal(signal.SIGTERM)
        tasks["worker_1"].must_end(75, seconds=60)
        tasks["worker_1"].sentence("start again: SIGTERM", "not ended within")
        runs.release()
    else:
        must_leave(tasks["worker_1"])
    tasks["worker_0"].must_end(75, seconds=60)
    tasks["worker_0"].sentence("start again:", "worker 1")


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_children_of_user_code_can_be_asked_to_end(runs):
    """While SIGTERM is held, and later, in any thread that runs Python."""
    path = runs.folder / "children"
    environ = {"SIGNAL_CODE": "children", "SIGNAL_FILE": str(path)}
    tasks = runs.tasks(
        "--train_steps=4",
        *flags("Trainer.data = @data_with_children"),
        environ={"worker_0": environ},
        worker=1,
    )
    tasks["worker_0"].must_end(0)
    found = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    assert found.keys() == {"import", "data", "training", "thread"}
    kinds = ("popen", "preexec", "fork", "spawn", "system")
    codes = dict.fromkeys(kinds, -signal.SIGTERM)
    assert set(found.values()) == {str(sorted(codes.items()))}


def flags(*lines):
    """More user code, and what gin gets to know of it."""
    return [
        f"--gin_file={pathlib.Path(__file__).parent / 'signals.gin'}",
        *(f"--gin_param={line}" for line in lines),
    ]


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", START + code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("plain", [True, False])
def test_a_child_that_runs_python_begins_anew(plain, request):
    """Also one that the tests' server forks: it holds nothing, and can."""
    if plain:
        request.getfixturevalue("plain_starts")
    code = """
from trainer.runtime import signals
def say():
    blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    print(sys.argv[1], blocked, default, signals.interruption(), flush=True)
say()
signals.hold()
say()
level = int(sys.argv[1])
if level < 2:
    code = sys.argv[2]
    subprocess.run([sys.executable, "-c", code, str(level + 1), code])
    say()
with signals.handler_restored():
    pass
say()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    import time; time.sleep(10)
except BaseException as error:
    print(type(error).__name__, flush=True)
"""
    done = run(code, "0", START + code)
    assert done.returncode == 0, done.stderr
    free, held = "{} False True None", "{} True False None"
    inner = [free, held, held, "Terminated"]
    outer = [free, held]
    after = [held, held, "Terminated"]
    expected = [line.format(0) for line in outer]
    expected += [line.format(1) for line in outer]
    expected += [line.format(2) for line in inner]
    expected += [line.format(1) for line in after]
    expected += [line.format(0) for line in after]
    assert done.stdout.splitlines() == expected


def test_no_moment_is_there_in_which_it_is_lost():
    """However C code changes handlers, and whenever the hold ends."""
    code = """
import ctypes, random, threading, time
from trainer.runtime import signals
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
harmless = ctypes.cast(libc.abs, ctypes.c_void_p)
rng = random.Random(0)

def one(pause, work):
    try:
        signals.hold()
        os.write(ready, b"!")
        time.sleep(pause)
        with signals.handler_restored():
            libc.signal(signal.SIGTERM, harmless)
            time.sleep(work)
        time.sleep(20)
    except BaseException as error:
        os._exit(75 if str(error).startswith("SIGTERM") else 1)
    os._exit(2)

codes = []
for _ in range(100):
    pause, work, wait = (rng.uniform(0, t) for t in (0.002, 0.002, 0.006))
    reading, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        one(pause, work)
    os.read(reading, 1)
    time.sleep(wait)
    os.kill(pid, signal.SIGTERM)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(reading), os.close(ready)
print(set(codes))
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("{75}\n", "")


def test_where_python_swallows_exceptions_the_process_still_ends():
    """As in JAX's callback of the garbage collector."""
    code = """
import gc, os, signal, time
from trainer.runtime import signals
signals._END_SECONDS = 0.5
signals.hold()
def send(*ignored):
    gc.callbacks.remove(send)
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(20):
        time.sleep(0.01)
gc.callbacks.append(send)
gc.collect()
time.sleep(30)
"""
    assert run(code).returncode == 75


@BOTH
def test_code_that_handles_exceptions_does_not_handle_it(name):
    """Such as the import of a plugin that may fail: the run went on without."""
    code = """
import os, signal, time
from trainer.runtime import signals

signals.hold()
try:
    try:
        os.kill(os.getpid(), signal.NAME)
        time.sleep(4)
    except Exception:
        print("handled")
except signals.Terminated as error:
    print(error)
"""
    assert (
        run(code.replace("NAME", name)).stdout
        == f"{name}; nothing more was saved\n"
    )


@pytest.fixture
def heard():
    """Signals that reach this process's own handler, as in a notebook."""
    found = []
    before = signal.signal(signal.SIGTERM, lambda *given: found.append(given))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_caller_has_its_handlers_back(heard):
    own = signal.getsignal(signal.SIGTERM)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    try:
        made = make_trainer(linear)
        made.train(2, callbacks=[Preemption()])
        assert signal.getsignal(signal.SIGTERM) is own
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 1
        assert os.read(reading, 9) == bytes([signal.SIGTERM])
    finally:
        assert signal.set_wakeup_fd(-1) == writing
        os.close(reading)
        os.close(writing)


def linear():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def test_a_forked_child_that_is_asked_to_end_does_so_alone():
    """Its parent has a descriptor for signals, which the child shares."""
    heard = []
    listener = signals.Listener([signal.SIGTERM], heard.append)
    assert listener.start()
    try:
        fork = multiprocessing.get_context("fork")
        for pause in (0.0, 0.0, 0.0, 0.002, 0.01, 0.3):
            child = fork.Process(target=time.sleep, args=(60,))
            child.start()
            time.sleep(pause)
            child.terminate()
            child.join(30)
            assert child.exitcode == -signal.SIGTERM
        time.sleep(0.2)
        assert heard == []
    finally:
        listener.stop()
