"""Real signals, and a real HTTP server that says what Google Cloud's says."""

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.helpers import saved_steps
from tests.sets import long
from trainer import Trainer
from trainer_plugins import Preemption

_SECONDS = 120


class Endless:
    """A run that ends only when it is asked to."""

    def __init__(self, directory, **options):
        self.model_dir = directory / "run"
        self._log = directory / "log"
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.plugins.callbacks.endless_script",
                    str(self.model_dir),
                    json.dumps(options),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self):
        return self._log.read_text()

    @property
    def step(self):
        steps = re.findall(r"^step (\d+)$", self.log, re.MULTILINE)
        return int(steps[-1]) if steps else 0

    def wait_for(self, condition):
        deadline = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.log[-3000:]
            assert self.process.poll() is None, self.log[-3000:]
            time.sleep(0.02)
        return self

    def wait_for_step(self, step):
        return self.wait_for(lambda: self.step >= step)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        return self.process.wait(_SECONDS)

    def saved_steps(self):
        return saved_steps(self.model_dir)


@pytest.fixture
def endless(tmp_path):
    made = []

    def make(**options):
        made.append(Endless(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(
    ("number", "slow"),
    [
        (signal.SIGTERM, {"save_seconds": 3.0}),
        pytest.param(signal.SIGINT, {"pause": 3.0}, marks=pytest.mark.long),
    ],
)
def test_the_grace_ends_neither_a_save_nor_who_can_press_again(
    endless, number, slow
):
    run = endless(
        checkpoint={"every": 10**9}, preemption={"grace_seconds": 2.0}, **slow
    )
    run.wait_for_step(10)
    run.signal(number)
    assert run.end() == 75
    assert "no step to save at" not in run.log
    # A signal that comes at the end of a graph call is answered before the
    # callback that prints the step.
    (saved,) = run.saved_steps()
    assert 0 <= saved - run.step <= 10


def test_a_run_that_nobody_saves_is_told_so(caplog):
    x = np.ones((8, 2), "float32")
    made = Trainer(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.05),
        data=lambda split: (x, x[:, :1]),
        strategy="default",
    )
    made.train(1, callbacks=[Preemption(metadata_url="")])
    assert "Add @Checkpoint() to run.callbacks" in caplog.text


@pytest.fixture
def metadata():
    """A metadata server whose answers a test sets."""
    values = {"preempted": "FALSE", "maintenance-event": "NONE"}
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            prefix = "/computeMetadata/v1/instance/"
            asked.append(self.path)
            if (
                self.headers.get("Metadata-Flavor") != "Google"
                or not self.path.startswith(prefix)
                or self.path.removeprefix(prefix) not in values
            ):
                self.send_error(404)
                return
            body = values[self.path.removeprefix(prefix)].encode()
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    values["url"] = f"http://127.0.0.1:{server.server_port}"
    values["asked"] = asked
    yield values
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("preempted", "TRUE"),
        # `test_a_metadata_server_need_not_have_every_key` ends with it, too.
        long("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
    ],
)
def test_a_vm_that_ends_is_like_sigterm(endless, metadata, key, value):
    run = endless(
        pause=0.02,
        preemption={"metadata_url": metadata["url"], "poll_seconds": 0.1},
    )
    run.wait_for_step(30)
    metadata[key] = value
    assert run.end() == 75, run.log[-3000:]
    assert "start again: the VM is" in run.log
    assert run.saved_steps()[-1] == run.step


def test_a_vm_that_moves_only_saves(endless, metadata):
    run = endless(
        pause=0.02,
        checkpoint={"every": 10**9},
        preemption={"metadata_url": metadata["url"], "poll_seconds": 0.1},
    )
    run.wait_for_step(30)
    metadata["maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
    run.wait_for(run.saved_steps)
    run.wait_for_step(run.step + 30)
    assert len(run.saved_steps()) == 1
